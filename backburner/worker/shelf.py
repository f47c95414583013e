"""The baked pages that are in memory: found by what they stand for, and given up first when memory is short."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock

from backburner.attention.baked import BakedPage
from backburner.attention.engine import Geometry


@dataclass(frozen=True, slots=True)
class RunName:
    """What a baked page stands for. Content keys, so other rows never have the same name."""

    keys: tuple[bytes, ...]  # of consecutive pages
    layer: int
    geometry: Geometry


class Reservation:
    """Memory for a page that is being baked. `lost` when the pages of a host needed it."""

    def __init__(self, count: int) -> None:
        self.bytes = count
        self.lost = False


class Shelf:
    """Owns no budget: the page store counts its bytes, and takes them back by `shed`. Any thread.

    The store calls it while it holds its own lock; it never calls the store.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[RunName, BakedPage] = OrderedDict()  # least recently used first
        self._reserved: Reservation | None = None  # one page at a time is baked
        self._lock = Lock()
        self.shed_pages = 0

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def bytes(self) -> int:
        """All that the store has counted for baked pages."""
        with self._lock:
            reserved = self._reserved.bytes if self._reserved is not None else 0
            return reserved + sum(page.bytes for page in self._pages.values())

    def __contains__(self, name: RunName) -> bool:
        with self._lock:
            return name in self._pages

    def get(self, name: RunName) -> BakedPage | None:
        """A page that can be asked, used now."""
        with self._lock:
            page = self._pages.get(name)
            if page is None or page.failed is not None:
                return None
            self._pages.move_to_end(name)
            return page

    def reserve(self, count: int) -> Reservation:
        """For the bytes that the store has just taken for one page."""
        with self._lock:
            assert self._reserved is None, "one bake at a time"
            self._reserved = Reservation(count)
            return self._reserved

    def add(self, name: RunName, page: BakedPage, reservation: Reservation) -> bool:
        """Puts a proven page where its reservation was. False if that is lost: then the page is not kept."""
        with self._lock:
            if reservation.lost:
                return False
            self._reserved = None
            self._pages[name] = page
            return True

    def cancel(self, reservation: Reservation) -> int:
        """Gives up a bake; returns the bytes that the store gets back."""
        with self._lock:
            if reservation is not self._reserved:  # it has become a page, or is lost
                return 0
            self._reserved = None
            return reservation.bytes

    def shed(self, needed: int) -> int:
        """Gives up at least `needed` bytes if there are so many, what is being baked first; returns how many."""
        freed = 0
        with self._lock:
            if needed > 0 and self._reserved is not None:
                freed = self._reserved.bytes
                self._reserved.lost, self._reserved = True, None
            while freed < needed and self._pages:
                _, page = self._pages.popitem(last=False)
                freed += page.bytes
                self.shed_pages += 1
        return freed

    def drop_idle(self, needed: int, wanted: Collection[RunName]) -> int:
        """Gives up pages that are not `wanted`, the least recently used first; returns the bytes."""
        freed = 0
        with self._lock:
            for name in [name for name in self._pages if name not in wanted]:
                if freed >= needed:
                    break
                freed += self._pages.pop(name).bytes
        return freed

    def drop_failed(self) -> tuple[list[tuple[RunName, str]], int]:
        """Pages that failed while they were asked, with the reasons, and their bytes."""
        with self._lock:
            failed = [(name, page) for name, page in self._pages.items() if page.failed is not None]
            for name, _ in failed:
                del self._pages[name]
        return [(name, page.failed or "") for name, page in failed], sum(page.bytes for _, page in failed)

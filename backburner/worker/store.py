"""The worker's pages, by (content key, layer), within a memory budget."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy.typing as npt

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.errors import BadRequest, OutOfBudget, UnknownPage

Name = tuple[bytes, int]  # (key, layer)

P = ParamSpec("P")
R = TypeVar("R")


def _locked(method: Callable[Concatenate["PageStore", P], R]) -> Callable[Concatenate["PageStore", P], R]:
    @wraps(method)
    def locked(store: "PageStore", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with store._lock:
            return method(store, *args, **kwargs)

    return locked


class PageStore:
    """Pages, complete or growing. What no sequence is bound to stays as a cache; the least recently used gives way.

    Two threads use it: the session's, and the tail's, whose own pages count against the same budget. Complete pages
    never change, so whoever was given some computes with them outside the lock.

    Pages of several geometries may lie side by side, from hosts that came one after another. Who asks for a page says
    its geometry: stored with another one, it does not count.
    """

    def __init__(self, engine: AttentionEngine, memory_bytes: int) -> None:
        self._engine = engine
        self.memory_bytes = memory_bytes
        self.used_bytes = 0
        self._pages: OrderedDict[Name, tuple[Any, Geometry]] = OrderedDict()  # least recently used first
        self._bound: dict[int, tuple[bytes, ...]] = {}
        self._pins: Counter[Name] = Counter()  # of pages that a tail uses
        self._spare_bytes = 0  # of used_bytes: what can be given up without losing a page
        self._shed: Callable[[int], int] = lambda needed: 0
        self._lock = RLock()

    @_locked
    def __len__(self) -> int:
        return len(self._pages)

    @property
    def sequences(self) -> int:
        return len(self._bound)

    @property
    def free_bytes(self) -> int:
        """What a new host could fill: all but the pages that a sequence is bound to. What a tail keeps of earlier reads
        gives way like spare bytes and idle pages."""
        with self._lock:
            bound = {key for keys in self._bound.values() for key in keys}
            pages = self._pages.items()
            used = sum(self._engine.page_bytes(g) for (key, _), (_, g) in pages if key in bound)
            return self.memory_bytes - used

    @_locked
    def complete_pages(self) -> int:
        return sum(page.filled == geometry.page_tokens for page, geometry in self._pages.values())

    @_locked
    def has(self, key: bytes, layer: int, geometry: Geometry) -> bool:
        """Whether the page is complete. Asking counts as a use: the host is about to bind it."""
        page = self._find(key, layer, geometry)
        if page is None or page.filled < geometry.page_tokens:
            return False
        self._pages.move_to_end((key, layer))
        return True

    @_locked
    def put(
        self, key: bytes, layer: int, row0: int, k: npt.NDArray[Any], v: npt.NDArray[Any], geometry: Geometry
    ) -> int:
        """Appends rows at row0, which must be where the page ends. Returns the rows stored.

        row0 = 0 of an existing page that is incomplete starts it anew (a piece was lost with an earlier link), and so
        it does with an unbound page of another geometry. A complete page is left as it is: equal keys mean equal rows.
        Raises OutOfBudget, BadRequest; a BadRequest changes nothing.
        """
        name = (key, layer)
        page = self._find(key, layer, geometry)
        filled = 0 if page is None else int(page.filled)
        if filled == geometry.page_tokens:
            return filled
        if row0 + k.shape[1] > geometry.page_tokens:
            raise BadRequest(f"{k.shape[1]} rows at {row0} exceed the page's {geometry.page_tokens}")
        if row0 not in (0, filled):
            raise BadRequest(
                f"row {row0} does not follow the {filled} rows stored"
                if filled
                else f"row {row0} of a page that has not begun"
            )
        if page is None or filled != row0:
            self._clear(name)
            page_bytes = self._engine.page_bytes(geometry)
            self.reserve(page_bytes, spare=key)
            try:
                page = self._engine.new_page(geometry)
            except BaseException:
                self.unreserve(page_bytes)
                raise
            self._pages[name] = (page, geometry)
        self._engine.append(page, k, v)
        self._pages.move_to_end(name)
        return int(page.filled)

    @_locked
    def rows(
        self, key: bytes, layer: int, start: int, stop: int, geometry: Geometry
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows [start, stop) of a page, as they came. Raises UnknownPage, BadRequest."""
        page = self._get(key, layer, geometry)
        if stop > page.filled:
            raise BadRequest(f"rows [{start}, {stop}) of a page that has {page.filled}")
        return self._engine.rows(page, start, stop)

    @_locked
    def drop(self, keys: Sequence[bytes]) -> None:
        """Frees pages at all layers. Raises BadRequest for a page that a sequence or a tail uses."""
        used, wanted = self._used(), set(keys)
        names = [name for name in self._pages if name[0] in wanted]
        if any(map(used, names)):
            raise BadRequest(
                "a page that a sequence is bound to cannot be dropped; release the sequence first"
            )
        for name in names:
            self._remove(name)

    @_locked
    def bind(self, sequence: int, keys: Sequence[bytes], layers: Sequence[int], geometry: Geometry) -> None:
        """Sets a sequence's ordered list of pages, complete at all `layers`. Raises UnknownPage and changes nothing."""
        for i, key in enumerate(keys):
            for layer in layers:
                if not self.has(key, layer, geometry):
                    raise UnknownPage(f"page {i} of sequence {sequence} is not complete at layer {layer}")
        self._bound[sequence] = tuple(keys)

    @_locked
    def release(self, sequence: int) -> None:
        self._bound.pop(sequence, None)

    @_locked
    def release_all(self) -> None:
        """The host is gone: its sequences end, its pages stay as a cache, incomplete ones go."""
        self._bound.clear()
        for name in [n for n, (page, geometry) in self._pages.items() if page.filled < geometry.page_tokens]:
            self._remove(name)

    @_locked
    def bound_pages(self, sequence: int, layer: int, first: int, count: int, geometry: Geometry) -> list[Any]:
        """Pages [first, first + count) of a sequence at one layer, in order. Raises UnknownPage, BadRequest."""
        keys = self._bound.get(sequence)
        if keys is None:
            raise UnknownPage(f"sequence {sequence} is not bound")
        if first + count > len(keys):
            raise BadRequest(f"pages [{first}, {first + count}) of a sequence that is bound to {len(keys)}")
        return [self._get(key, layer, geometry) for key in keys[first : first + count]]

    @_locked
    def reserve(self, needed: int, spare: bytes | None = None) -> None:
        """Takes bytes of the budget. What is spare gives way first, then idle pages, the least recently used first, but
        none of the key `spare`: that page is arriving at other layers. Raises OutOfBudget."""
        short = self.used_bytes + needed - self.memory_bytes
        if short > 0 and self._spare_bytes:
            self.return_spare(self._shed(short))
        used = self._used()
        for name in list(self._pages):
            if self.used_bytes + needed <= self.memory_bytes:
                break
            if name[0] != spare and not used(name):
                self._remove(name)
        if self.used_bytes + needed > self.memory_bytes:
            raise OutOfBudget(
                f"a page of {needed} bytes does not fit: {self.used_bytes} of {self.memory_bytes} bytes are in use. "
                "Start the worker with more --memory."
            )
        self.used_bytes += needed

    @_locked
    def unreserve(self, count: int) -> None:
        """Gives reserved bytes back."""
        self.used_bytes -= count

    def give_spare_to(self, shed: Callable[[int], int]) -> None:
        """Who takes spare bytes, and how to have them back: shed(needed) returns the bytes that it gave up. It is
        called under the store's lock and may not call the store."""
        self._shed = shed

    @_locked
    def take_spare(self, count: int) -> bool:
        """Takes bytes that no page needs now; False, and nothing, if there are too few."""
        if self.used_bytes + count > self.memory_bytes:
            return False
        self.used_bytes += count
        self._spare_bytes += count
        return True

    @_locked
    def return_spare(self, count: int) -> None:
        self.used_bytes -= count
        self._spare_bytes -= count

    @_locked
    def bound_lists(self) -> list[tuple[bytes, ...]]:
        """The keys of every sequence, in the order of its pages; the sequence that began last comes first."""
        return list(reversed(self._bound.values()))

    @_locked
    def bound_keys(self, sequence: int) -> tuple[bytes, ...]:
        return self._bound.get(sequence, ())

    @_locked
    def pages_of(self, keys: Sequence[bytes], layer: int, geometry: Geometry) -> list[Any]:
        """Complete pages by their keys. Raises UnknownPage."""
        pages = [self._get(key, layer, geometry) for key in keys]
        if any(page.filled < geometry.page_tokens for page in pages):
            raise UnknownPage("a page is not complete")
        return pages

    @_locked
    def adopt(self, key: bytes, layer: int, page: Any, geometry: Geometry) -> Any:
        """Stores a complete page whose bytes were reserved, and pins it until `unpin`. Returns the page to use.

        That is another one if the page is stored already: equal keys mean equal rows, and `page`'s bytes are given
        back. Raises BadRequest.
        """
        name = (key, layer)
        stored = self._find(key, layer, geometry)
        if stored is not None and stored.filled == geometry.page_tokens:
            self.unreserve(self._engine.page_bytes(geometry))
            page = stored
        else:
            self._clear(name)
            self._pages[name] = (page, geometry)
        self._pages.move_to_end(name)
        self._pins[name] += 1
        return page

    @_locked
    def unpin(self, key: bytes, layer: int) -> None:
        """A tail no longer uses the page: it stays as a cache."""
        name = (key, layer)
        self._pins[name] -= 1
        if not self._pins[name]:
            del self._pins[name]

    def _find(self, key: bytes, layer: int, geometry: Geometry) -> Any | None:
        page, stored = self._pages.get((key, layer), (None, None))
        return page if stored is geometry or stored == geometry else None

    def _get(self, key: bytes, layer: int, geometry: Geometry) -> Any:
        page = self._find(key, layer, geometry)
        if page is None:
            raise UnknownPage(f"page {key.hex()[:12]} is not stored at layer {layer}")
        return page

    def _used(self) -> Callable[[Name], bool]:
        """Whether a sequence is bound to a page, or a tail uses it."""
        bound = {key for keys in self._bound.values() for key in keys}
        return lambda name: name[0] in bound or name in self._pins

    def _clear(self, name: Name) -> None:
        """Removes what stands where a page is to be stored: an incomplete one, or one of another geometry."""
        if name in self._pages:
            if self._used()(name):
                raise BadRequest("this key is bound with another page geometry")
            self._remove(name)

    def _remove(self, name: Name) -> None:
        _, geometry = self._pages.pop(name)
        self.used_bytes -= self._engine.page_bytes(geometry)

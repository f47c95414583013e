"""The spill: copies on the host's SSD of the pages that leave the host, so that the loss of a worker is survivable."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.errors import ConfigError
from backburner.kv.spill_file import Arrays, PageFile, file_bytes, write_page
from backburner.kv.spill_folder import PrivateFolder

log = logging.getLogger("backburner.kv")

# Pages that wait for the disk still take memory, also when the host has given them up; beyond this, `offer` waits.
# Three and a half of the first Backburner's pages, 143 MB over all layers: a read at 300 tokens/s fills one in 14 s,
# and an SSD at 1 GB/s writes it in 0.15 s, so only a disk that stalls fills the queue.
QUEUE_BYTES = 2**29

# A disk that makes no room for so long is as good as broken; the engine thread is what waits.
OFFER_DEADLINE_S = 30.0

_COST = "If the worker is lost, the conversations whose pages it holds end."


class _State(Enum):
    REFUSED = auto()  # there is no copy, and will be none unless it is offered again
    QUEUED = auto()  # or being written
    WRITTEN = auto()


@dataclass(eq=False, slots=True)
class _Entry:
    """One key that somebody has offered."""

    key: bytes
    references: int = 0
    state: _State = _State.REFUSED
    path: Path | None = None
    bytes: int = 0  # of the file, counted from the moment it is queued
    layers: Sequence[tuple[int, Arrays]] = ()  # until it is written
    file: PageFile | None = None  # once it has been asked for


class Spill:
    """Files by page key, with references. Any thread may call; one thread of its own writes.

    Written means that the file is whole and in its place, not that the disk has it: the copy survives the worker,
    not this process, whose successor sweeps it.
    """

    def __init__(
        self,
        folder: Path,
        cap_bytes: int,
        engine: AttentionEngine,
        geometry: Geometry,
        layers: Sequence[int],
    ) -> None:
        """Raises ConfigError if nothing can be kept in the folder."""
        self._cap_bytes = cap_bytes
        self._engine = engine
        self._geometry = geometry
        self._layers = tuple(layers)
        self._folder = _private(folder)
        self._entries: dict[bytes, _Entry] = {}
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0  # with the one that is being written
        self._used_bytes = 0
        self._written = 0  # keys
        self.partials = 0  # answers over pages from here (`kv.held` counts)
        self._files = 0  # made so far: their names. A key may come back while its old file is being removed
        self._changed = threading.Condition()
        self._failed = False  # the disk is; nothing more is written
        self._warned_of_cap = False
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="spill", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        """This process's own sub-folder."""
        return self._folder.path

    @property
    def bytes_used(self) -> int:
        """Bytes of the files that are written or will be."""
        return self._used_bytes

    @property
    def pages(self) -> int:
        """Keys that are written."""
        return self._written

    def offer(self, key: bytes, layers: Sequence[tuple[int, Any]]) -> None:
        """Takes a reference, and queues the page for writing unless it is queued or written already.

        layers: (layer, page) for each attention layer, all full: they never change, so nothing is copied. Waits when
        the disk is behind. A page may be refused, which `refused` tells; the reference is counted all the same.
        """
        with self._changed:
            entry = self._entries.setdefault(key, _Entry(key))
            entry.references += 1
            if entry.state is not _State.REFUSED or self._closing or self._failed:
                return
            pages = dict(layers)
            arrays = [(layer, self._engine.storage(pages[layer])) for layer in self._layers]
            size = file_bytes(key, self._geometry, arrays)
            self._wait_for_room(size)
            # Meanwhile, it may have been released, or offered by somebody else.
            if entry.references and entry.state is _State.REFUSED and self._admits(size):
                self._enqueue(entry, arrays, size)

    def written(self, key: bytes) -> bool:
        return self._state(key) is _State.WRITTEN

    def refused(self, key: bytes) -> bool:
        """Whether an offered page has no copy and will get none: it did not fit, or the disk failed or damaged it."""
        return self._state(key) is _State.REFUSED

    def page(self, key: bytes, layer: int) -> Any | None:
        """One layer's page over the mapped file, for the engine's `attend`; None if it is not written, or damaged.

        What is kept between calls is the mapping, not the page: an engine that copies (mlx) takes a page's memory for
        as long as the caller keeps it, and no longer.
        """
        with self._changed:
            entry = self._entries.get(key)
            if entry is None or entry.state is not _State.WRITTEN:
                return None
            assert entry.path is not None
            try:
                if entry.file is None:
                    entry.file = PageFile(entry.path, key, self._geometry)
                return self._engine.page_over(self._geometry, entry.file.arrays(layer), entry.file.filled)
            except OSError as e:
                log.error("a spilled page cannot be read: %s", e)
            except ValueError as e:
                log.error("a spilled page is damaged and will not be used: %s: %s", entry.path, e)
                self._forget(entry)
            return None

    def release(self, keys: Iterable[bytes]) -> None:
        """Drops one reference of each. A page without any is removed, or never written; unknown keys are ignored."""
        with self._changed:
            for key in keys:
                entry = self._entries.get(key)
                if entry is None:
                    continue
                entry.references -= 1
                if entry.references == 0:
                    del self._entries[key]
                    self._forget(entry)

    def close(self) -> None:
        """Stops the thread and removes every file. Nothing is written or found from here on."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            for entry in self._entries.values():
                self._forget(entry)
            self._changed.notify_all()
        self._thread.join(OFFER_DEADLINE_S)
        self._folder.remove()

    def _state(self, key: bytes) -> _State | None:
        with self._changed:
            entry = self._entries.get(key)
            return entry.state if entry else None

    def _wait_for_room(self, size: int) -> None:
        """Until the queue takes `size` bytes more; a page that is larger than the queue waits for an empty one."""
        deadline = time.monotonic() + OFFER_DEADLINE_S
        while (
            self._queued_bytes
            and self._queued_bytes + size > QUEUE_BYTES
            and not (self._closing or self._failed)
        ):
            left = deadline - time.monotonic()
            if left <= 0:
                self._fail(f"it has not written a page for {OFFER_DEADLINE_S:.0f} s")
                return
            self._changed.wait(left)

    def _admits(self, size: int) -> bool:
        if self._closing or self._failed:
            return False
        if self._used_bytes + size <= self._cap_bytes:
            return True
        if not self._warned_of_cap:
            self._warned_of_cap = True
            log.warning(
                "The spill folder %s has reached its limit of %d bytes; further pages get no copy there. %s",
                *(self.folder, self._cap_bytes, _COST),
            )
        return False

    def _enqueue(self, entry: _Entry, layers: Sequence[tuple[int, Arrays]], size: int) -> None:
        self._files += 1
        entry.path = self.folder / f"{self._files}.page"
        entry.state, entry.layers, entry.bytes = _State.QUEUED, layers, size
        self._used_bytes += size
        self._queued_bytes += size
        self._queue.append(entry)
        self._changed.notify_all()

    def _forget(self, entry: _Entry) -> None:
        """There is no copy any more. If it is being written just now, the writer sees it and cleans up."""
        if entry.state is _State.WRITTEN:
            self._written -= 1
            self._remove(entry)
        elif entry in self._queue:
            self._queue.remove(entry)
            self._unqueue(entry)
            self._used_bytes -= entry.bytes
        entry.state, entry.file = _State.REFUSED, None

    def _unqueue(self, entry: _Entry) -> None:
        entry.layers = ()
        self._queued_bytes -= entry.bytes
        self._changed.notify_all()

    def _remove(self, entry: _Entry) -> None:
        assert entry.path is not None
        self._used_bytes -= entry.bytes
        with contextlib.suppress(OSError):  # whoever still has a page of it keeps the mapping
            entry.path.unlink()

    def _fail(self, reason: object) -> None:
        with self._changed:
            if self._failed or self._closing:
                return
            self._failed = True
            for entry in list(self._queue):
                self._forget(entry)
            self._changed.notify_all()
        log.warning("The disk of the spill folder %s takes no more pages: %s. %s", self.folder, reason, _COST)

    def _main(self) -> None:
        while (entry := self._next()) is not None:
            self._write(entry)

    def _next(self) -> _Entry | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return None if self._closing else self._queue.popleft()

    def _write(self, entry: _Entry) -> None:
        assert entry.path is not None
        done = False
        try:
            done = write_page(
                entry.path, entry.key, self._geometry, entry.layers, lambda: entry.state is _State.QUEUED
            )
        except OSError as e:
            self._fail(e)
        except Exception as e:  # a fault of ours must not leave pages waiting for ever
            log.exception("writing a spilled page has failed")
            self._fail(f"{type(e).__name__}: {e}")
        with self._changed:
            self._unqueue(entry)
            if done and entry.state is _State.QUEUED:
                entry.state = _State.WRITTEN
                self._written += 1
            elif done:
                self._remove(entry)
            else:
                self._used_bytes -= entry.bytes
                entry.state = _State.REFUSED


def check_folder(folder: Path) -> None:
    """Raises ConfigError if nothing can be kept in the folder."""
    _private(folder).remove()


def _private(folder: Path) -> PrivateFolder:
    try:
        return PrivateFolder(folder)
    except OSError as e:
        raise ConfigError(f"the spill folder {folder} cannot be used: {e}. Choose another one.") from e

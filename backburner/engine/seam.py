"""Chooses the seam of a split read from measured speeds, and makes its workers ready."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.sequence import Sequence
from backburner.engine.stage import KEYS_MAX, LeftThere, Stage, bring_up
from backburner.engine.tail import TailRead
from backburner.engine.worker_link import WorkerLink
from backburner.errors import BackburnerError, RemoteError
from backburner.kv.held import MirroredPages
from backburner.kv.pages import PageTable
from backburner.kv.question import PageConnection
from backburner.model.hybrid import HybridModel
from backburner.planner.seam import Speeds, best_seam, why_not

log = logging.getLogger("backburner.engine")

# A speed that was measured counts so much of the new value: a busy moment passes, heat does not.
NEW_SHARE = 0.3

Fingerprint = Callable[[int, int], bytes]  # of layers [first, stop)


@dataclass(slots=True)
class _Tail:
    """What is known of one connection's tail."""

    connection: PageConnection
    layer_us: float | None = None
    refused: str | None = None  # why this worker runs no layers


@dataclass(slots=True)
class ReadCounts:
    """What became of long reads since the start."""

    split: int = 0
    whole: int = 0  # not split, though that was wanted
    lost: int = 0  # went on without their workers
    tokens: int = 0  # that workers ran
    worker_s: float = 0.0  # that workers computed


def _moved(before: float | None, measured: float) -> float:
    """A moving average with one more measurement."""
    return measured if before is None else before + NEW_SHARE * (measured - before)


class SeamChooser:
    """Which layers workers run in the next read. `split_layer`: None for auto, 0 for never, else the seam."""

    def __init__(
        self,
        model: HybridModel,
        cycle: int,
        workers: Items[WorkerLink],
        fingerprint: Fingerprint,
        new_id: Callable[[], int],
        split_layer: int | None,
        split_tokens_min: int,
        ubatch_bytes: int,
    ) -> None:
        """ubatch_bytes: that cross for one ubatch, the residual out and the tail's rows back (of all layers)."""
        self._model = model
        self._cycle = cycle
        self._workers = tuple(workers)
        self._fingerprint = fingerprint
        self._new_id = new_id
        self._split_layer = split_layer
        self._split_tokens_min = split_tokens_min
        self._ubatch_bytes = ubatch_bytes
        self._tails: dict[int, _Tail] = {}  # by worker
        self._host_layer_us: float | None = None
        self._cold = True
        self._last_seam: int | None = None
        self._left: LeftThere | None = None  # of the last read that was split, or was to be
        self.seam: int | None = None  # of the last read; None: it was not split
        self.note: str | None = None  # why reads are not split, for status and log
        self.reads = ReadCounts()

    @property
    def wanted(self) -> bool:
        return self._split_layer != 0 and bool(self._workers)

    def observe_host(self, layers: int, seconds: float) -> None:
        """The host has run a whole ubatch through so many layers."""
        if self._cold:  # it also compiled, and touched memory for the first time
            self._cold = False
            return
        self._host_layer_us = _moved(self._host_layer_us, seconds / layers * 1e6)

    def observe_read(self, read: TailRead) -> None:
        """A split read has ended: how fast its workers were."""
        self._count(read)
        if not read.tokens:
            return
        layer_us = read.worker_s / read.tokens * UBATCH_TOKENS / (len(self._model.layers) - read.seam) * 1e6
        for tail in self._tails.values():
            if any(stage.connection is tail.connection for stage in read.stages):
                tail.layer_us = _moved(tail.layer_us, layer_us)

    def observe_loss(self, read: TailRead) -> None:
        """A split read goes on without its workers."""
        self._count(read)
        self.reads.lost += 1

    def _count(self, read: TailRead) -> None:
        self.reads.tokens += read.tokens
        self.reads.worker_s += read.worker_s

    def begin(self, state: Sequence, start: int, last_start: int) -> TailRead | None:
        """A split read from `start`, or None when the host reads alone."""
        self.seam = None
        if not self.wanted or state.prompt_tokens - start <= self._split_tokens_min:
            return None
        if start == last_start:  # one ubatch, the last, which the host runs itself
            return None
        read = self._begin(state, start, last_start)
        if read is None:
            self.reads.whole += 1
        else:
            self.reads.split += 1
        return read

    def _begin(self, state: Sequence, start: int, last_start: int) -> TailRead | None:
        tails = [t for t in map(self._tail, range(len(self._workers))) if t is not None]
        if not tails:
            return None
        keys = state.name_ubatches(start)
        if len(keys) > KEYS_MAX:  # rows of all that is beyond would have to cross for each such read
            self.note = f"a read that goes on beyond {KEYS_MAX * UBATCH_TOKENS:,} tokens is not split"
            return None
        try:
            stages = self._open(tails, keys)
            if stages is None:
                return None
            for stage in stages:
                bring_up(stage, state, start)
        except BackburnerError as e:
            log.warning("this read is not split: %s", e)
            return None
        self.seam = self._last_seam = stages[0].first
        for worker in self._workers:
            ranges = [(s.first, s.stop) for s in stages if s.connection is worker.connection]
            worker.tail_layers = ranges[0] if ranges else None
        if state.held is not None:
            index = next(i for i, t in self._tails.items() if t.connection is stages[0].connection)
            pages = last_start // state.table.geometry.page_tokens
            one = len(stages) == 1  # of a chain no stage has all tail layers
            state.held.mirror = MirroredPages(index, stages[0].sequence, pages) if one else None
        read = TailRead(self._model, state, stages, start, last_start)
        self._left = read.left
        return read

    def give_back(self, table: PageTable, worker: int) -> bool:
        """Makes room for pages of a table at a worker that keeps something of the last split read, and with it at the
        others of its chain. False if it does not, or while that read is running."""
        left, connection = self._left, self._workers[worker].connection
        if left is None or not left.over or all(s.connection is not connection for s in left.stages):
            return False
        self._left = None
        left.give_back(table)
        return True

    def prepare(self) -> None:
        """Lets workers load the layers that they will probably run, before the first long read has to wait for it."""
        tails = [t for t in map(self._tail, range(len(self._workers))) if t is not None]
        if not (self.wanted and tails):
            return
        try:
            self._open(tails, [])
        except BackburnerError as e:
            log.warning("reads are not split for now: %s", e)
        self._left = None  # nothing has been read there yet

    def _tail(self, worker: int) -> _Tail | None:
        connection = self._workers[worker].connection
        if connection is None:
            return None
        tail = self._tails.get(worker)
        if tail is None or tail.connection is not connection:
            known = tail.layer_us if tail else None
            tail = self._tails[worker] = _Tail(connection, known)
            if self._workers[worker].welcome.layers == 0:
                tail.refused = "it has no model; start it with --model"
        if tail.refused is not None:
            self.note = f"the worker runs no layers: {tail.refused}"
            return None
        return tail

    def _open(self, tails: list[_Tail], keys: list[bytes]) -> list[Stage] | None:
        """Stages over [seam, N), as a chain when there are several workers."""
        seam = self._seam(tails)
        for _ in range(2):  # the first time, a worker's speed is known only once it is open
            if seam is None:
                self.note = self._not_paying(tails)
                return None
            stages = self._stages(tails, seam)
            # Until a read has them: if a later one refuses, the others keep what they have for nothing.
            self._left = LeftThere(tuple(stages), None, over=True)
            for stage, tail in zip(stages, tails, strict=False):
                try:
                    opened = stage.open(self._fingerprint(stage.first, stage.stop), UBATCH_TOKENS, keys)
                except RemoteError as e:
                    if e.code in ("no_model", "mismatch"):
                        tail.refused = str(e)
                    raise
                if tail.layer_us is None:
                    tail.layer_us = opened.layer_us
            better = self._seam(tails)
            if better == seam:
                self.note = None
                return stages
            seam = better
        if seam is None:
            self.note = self._not_paying(tails)
            return None
        return stages

    def _not_paying(self, tails: list[_Tail]) -> str:
        if self._host_layer_us is None:
            return "splitting reads would not pay, as far as is known: this host has read no whole ubatch yet"
        return f"splitting reads would not pay: {why_not(self._speeds(tails), self._cycle)}"

    def _stages(self, tails: list[_Tail], seam: int) -> list[Stage]:
        """The tail dealt to a chain of workers in whole cycles, equally: each stage but the first needs a hop more."""
        layers = len(self._model.layers)
        cycles = max(1, (layers - seam) // self._cycle)
        count = min(len(tails), cycles)
        edges = [seam + i * cycles // count * self._cycle for i in range(count)] + [layers]
        return [
            # A number of its own for each read: what is still on its way under an old one then names nothing wrongly.
            Stage(t.connection, edges[i], edges[i + 1], self._new_id())
            for i, t in enumerate(tails[:count])
        ]

    def _seam(self, tails: list[_Tail]) -> int | None:
        if self._split_layer is not None:
            return self._split_layer
        return best_seam(self._speeds(tails), self._cycle, self._last_seam)

    def _speeds(self, tails: list[_Tail]) -> Speeds:
        layers = len(self._model.layers)
        host_us = self._host_layer_us or 1.0
        known = [t.layer_us for t in tails if t.layer_us is not None]
        # A chain of k workers is like one that is k times as fast; one that nobody has measured is like the host.
        worker_us = (sum(known) / len(known) if known else host_us) / len(tails)
        # The slowest cable of those that would run layers; one that only holds pages takes no part.
        rates = [
            w.speed.bytes_per_s for w in self._workers if any(t.connection is w.connection for t in tails)
        ]
        link_us = self._ubatch_bytes / min(rates) * 1e6 if rates and self._host_layer_us else 0.0
        return Speeds(layers, host_us, worker_us, link_us)

"""One worker and the layers that it runs for a sequence: opened, brought to where the sequence stands, and left."""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from backburner.engine.sequence import Sequence
from backburner.errors import BackburnerError
from backburner.kv.mover import PIECE_BYTES
from backburner.kv.pages import PageTable
from backburner.kv.question import PageConnection
from backburner.model.arrays import to_numpy
from backburner.transport.fields import ITEMS_MAX
from backburner.transport.messages import PutRows, PutState, TailOpen, TailOpened, TailRewind

# Ubatches that a stage may be behind. With two it has one to run and one waiting; three absorb a hiccup on either side
# (the first Backburner's figures: 70 tok/s at 140k tokens, 74 with three).
IN_FLIGHT = 3

# Loading a tail's layers from a phone's flash: 8 GB at 1 GB/s, and room.
OPEN_DEADLINE_S = 120.0

# Ubatches by whose names a worker finds its mirror: what is beyond 262,144 tokens it has to be given again.
KEYS_MAX = ITEMS_MAX


@dataclass(eq=False)
class Stage:
    """One worker and the layers that it runs."""

    connection: PageConnection
    first: int
    stop: int
    sequence: int
    opened: TailOpened | None = None

    def deadline_s(self, tokens: int) -> float:
        """The longest to wait until the worker has run so many tokens."""
        return self.connection.chunks.deadline_s(tokens * (self.stop - self.first))

    def observe(self, tokens: int, seconds: float) -> None:
        """It has run them."""
        self.connection.chunks.observe(tokens * (self.stop - self.first), seconds)

    def open(
        self, fingerprint: bytes, ubatch_tokens: int, keys: Items[bytes], head: bool = False
    ) -> TailOpened:
        """Makes the worker ready. Raises RemoteError (no_model, mismatch, ...) or TransportError.

        Of more keys than KEYS_MAX the first are sent.
        """
        names = tuple(keys[:KEYS_MAX])
        request = TailOpen(self.sequence, self.first, self.stop, head, fingerprint, ubatch_tokens, names)
        self.opened = opened = self.connection.link.exchange(request, OPEN_DEADLINE_S)
        self.observe(ubatch_tokens, opened.layer_us * (self.stop - self.first) / 1e6)
        return opened


def bring_up(stage: Stage, state: Sequence, position: int) -> None:
    """Gives the worker what its mirror lacks of a sequence that stands at `position`: rows, then recurrent states.

    Raises RemoteError, TransportError or WorkerLost.
    """
    assert stage.opened is not None
    link, sequence = stage.connection.link, stage.sequence
    rows = min(stage.opened.rows, position)
    if rows == position and (position == 0 or position in stage.opened.states):
        link.exchange(TailRewind(sequence, position))
        return
    link.exchange(TailRewind(sequence, rows))
    tags: deque[int] = deque()

    def sent(request: Any) -> None:
        tags.append(link.post(request))
        while len(tags) > IN_FLIGHT:
            link.wait(tags.popleft(), OPEN_DEADLINE_S)

    try:
        _send_all(stage, state, rows, position, sent)
        while tags:
            link.wait(tags.popleft(), OPEN_DEADLINE_S)
    finally:
        for tag in tags:  # after a refusal: replies that nobody takes would stay on the link
            with contextlib.suppress(BackburnerError):
                link.wait(tag, OPEN_DEADLINE_S)


def _send_all(stage: Stage, state: Sequence, rows: int, position: int, sent: Callable[[Any], None]) -> None:
    """The rows from `rows` on of each attention layer of the stage, then the states of the others."""
    sequence = stage.sequence
    for layer, pages in state.table.layers.items():
        if not stage.first <= layer < stage.stop:
            continue
        piece = max(1, PIECE_BYTES // state.table.geometry.row_bytes)
        start = rows
        while start < position:
            left_of_page = state.table.geometry.page_tokens - start % state.table.geometry.page_tokens
            count = min(piece, position - start, left_of_page)
            k, v = state.rows(layer, start, count)
            sent(PutRows(sequence, layer, start, k, v))
            start += count
        assert pages.offset >= position
    for layer in state.recurrent_layers:
        if stage.first <= layer < stage.stop:
            conv, recurrent = state.caches[layer].cache
            if conv is None:
                continue
            mx.eval(conv, recurrent)
            sent(PutState(sequence, layer, position, to_numpy(conv), to_numpy(recurrent)))


@dataclass(eq=False, slots=True)
class LeftThere:
    """What workers have of a split read, and keep for the next one. Outlives the read, and keeps nothing of it here."""

    stages: tuple[Stage, ...]
    table: "weakref.ref[PageTable] | None"  # None: of no use to anybody
    over: bool = False  # the read has ended

    def give_back(self, table: PageTable) -> None:
        """Makes room there for pages of a table: what they have are its held pages already, or it goes."""
        made_for = self.table and self.table()
        mine = made_for is table and len(self.stages) == 1  # in a chain nothing is held in common
        position = table.held * table.geometry.page_tokens if mine else 0
        for stage in self.stages:
            with contextlib.suppress(BackburnerError):  # then it is gone already
                stage.connection.link.exchange(TailRewind(stage.sequence, position), OPEN_DEADLINE_S)

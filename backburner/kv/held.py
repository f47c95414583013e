"""One sequence's pages at the worker: which are there, and asking for attention over them."""

import contextlib
from typing import Any

import numpy.typing as npt

from backburner.attention.engine import Partial
from backburner.errors import BackburnerError, ProtocolError, RemoteError, TransportError, WorkerLost
from backburner.kv.mover import MOVE_DEADLINE_S, Moves, PageMover
from backburner.kv.pages import PageTable
from backburner.kv.residency import Residency
from backburner.transport.link import Link
from backburner.transport.messages import Attend, PartialReply

# The host may run this far past its window before it waits for the worker: one page is what is always on its way.
OVERDUE_PAGES = 1

# No worker worth waiting for is slower: MLX's plain CPU operators, the slowest engine, reach 4 GFLOP/s.
SLOWEST_FLOP_PER_S = 1e9


class _Question:
    def __init__(self, link: Link, tag: int, shape: tuple[int, ...], deadline_s: float) -> None:
        self._link, self._tag, self._shape, self._deadline_s = link, tag, shape, deadline_s
        self._waiting = True

    def answer(self) -> Partial:
        self._waiting = False
        try:
            reply = self._link.wait(self._tag, self._deadline_s)
        except (RemoteError, TransportError) as e:
            raise _lost(e) from e
        assert isinstance(reply, PartialReply)  # the link has checked it
        if reply.o.shape != self._shape:
            # Broadcasting would merge it without a word.
            self._link.close()
            raise _lost(ProtocolError(f"a partial of shape {reply.o.shape} for a query of {self._shape}."))
        return Partial(reply.o, reply.lse)

    def abandon(self) -> None:
        """Takes the reply off the link, where it would stay for ever; if it was taken already, there is none."""
        if self._waiting:
            with contextlib.suppress(WorkerLost):
                self.answer()


class HeldPages:
    """Moves a sequence's old pages to the worker by the residency policy, and answers for them (`kv.pages.Holder`)."""

    def __init__(
        self,
        link: Link,
        mover: PageMover,
        residency: Residency,
        sequence: int,
        overdue_pages: int = OVERDUE_PAGES,
    ) -> None:
        self._link = link
        self._mover = mover
        self._residency = residency
        self._moves = Moves(sequence)
        self._overdue_pages = overdue_pages

    @property
    def refused(self) -> str | None:
        """Why the worker takes no more of this sequence's pages, or None."""
        return self._moves.refused

    def ask(self, layer: int, count: int, q: npt.NDArray[Any]) -> _Question:
        """Sends one query block [q_heads, T, head_dim] for the first `count` pages of a layer; returns at once."""
        flop = 4 * q.size * count * self._residency.page_tokens
        deadline_s = self._link.timeout_s + flop / SLOWEST_FLOP_PER_S
        self._mover.be_patient(deadline_s)
        try:
            tag = self._link.post(Attend(self._moves.sequence, layer, 0, count, q))
            return _Question(self._link, tag, q.shape, deadline_s)
        except TransportError as e:
            raise _lost(e) from e

    def settle(self, table: PageTable, expected_tokens: int) -> None:
        """Between two steps: offers pages that will have to go, drops those that have arrived and are past the window.

        `expected_tokens` is what the sequence will reach for certain. Waits when the host is too far past its window.
        Raises WorkerLost when the link is gone and pages are held; without held pages the host just goes on alone.
        """
        moves, mover, policy = self._moves, self._mover, self._residency
        if mover.error is not None:
            if table.held:
                raise _lost(mover.error)
            return
        if moves.refused is None:
            for i in range(len(moves.keys), policy.copy_target(table.tokens, expected_tokens)):
                mover.offer(moves, table.keys[i], list(table.page(i)))
            overdue = policy.overdue(table.tokens, moves.bound)
            if overdue > self._overdue_pages:
                mover.wait_bound(moves, moves.bound + overdue - self._overdue_pages, MOVE_DEADLINE_S)
        if mover.error is not None and not table.held:
            return  # lost meanwhile: what was bound there is still here, too
        table.drop_to(policy.droppable(table.tokens, moves.bound))

    def release(self) -> None:
        """The sequence has ended. Its pages stay with the worker as a cache."""
        self._mover.release(self._moves)


def _lost(error: BackburnerError) -> WorkerLost:
    return WorkerLost(
        f"The worker went away while it held part of this conversation: {str(error).rstrip('.')}. "
        "Send the request again; it will be read from the start."
    )

"""The mover's thread over a real socket: what it takes for the end of a worker, and what not."""

import threading
from typing import Any

import pytest

from backburner.attention.numpy_engine import NumpyEngine
from backburner.errors import BadRequest, UnknownPage
from backburner.kv.mover import PIECE_BYTES, Moves, PageMover
from backburner.model.load import TINY
from backburner.transport import messages as m
from backburner.transport.clock import FLOOR_S
from backburner.worker.session import Session
from backburner.worker.tail import Tail
from tests.host import serving, until
from tests.test_worker import GEOMETRY, KEY, LAYERS, greeted, put
from tests.transport_helpers import LONG_S


@pytest.mark.parametrize("named", [True, False])
def test_a_tail_that_is_long_in_naming_a_page_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """It answers between two of its chunks, each of which may take longer than any piece of a page."""
    asked, between_chunks = threading.Event(), threading.Event()

    def name_pages(*_: Any) -> m.Ok:
        asked.set()
        assert between_chunks.wait(LONG_S)
        if not named:
            raise UnknownPage("that tail was given up")
        return m.Ok()

    monkeypatch.setattr(Tail, "_name_pages", name_pages)
    with serving(model=("tiny", TINY)) as server:
        link = greeted(server)
        put(link)
        mover, moves = PageMover(link, NumpyEngine(), GEOMETRY, len(LAYERS)), Moves(1)
        mover._pieces.observe(PIECE_BYTES, 0.001)  # as if pages had crossed before
        mover.offer(moves, KEY, list, m.NamePages(2, (KEY,)))
        assert asked.wait(LONG_S)
        threading.Timer(1.5 * FLOOR_S, between_chunks.set).start()
        assert mover.wait_bound(moves, 1, LONG_S), mover.error
        assert mover.found_pages == len(LAYERS)
        mover.close()
        link.close()


def test_a_release_that_is_refused_is_not_told_as_a_refused_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> m.Ok:
        raise BadRequest("no such sequence")

    monkeypatch.setattr(Session, "_release", refused)
    with serving() as server:
        link = greeted(server)
        put(link)
        mover, moves = PageMover(link, NumpyEngine(), GEOMETRY, len(LAYERS)), Moves(1)
        mover.release(moves)
        until(lambda: bool(caplog.records))
        assert "the worker did not let go of a sequence that has ended: no such sequence" in caplog.text
        assert "refused a page" not in caplog.text
        assert moves.refused is None
        after = Moves(2)
        mover.offer(after, KEY, list)
        assert mover.wait_bound(after, 1, LONG_S), "it goes on"
        mover.close()
        link.close()

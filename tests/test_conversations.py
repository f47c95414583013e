"""The scripted conversations that the Swift worker is held to: our worker answers so, and a wrong one is found out."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from backburner.model.load import TINY
from backburner.transport import messages as m
from backburner.worker.server import WorkerServer
from backburner.worker.session import Session
from backburner.worker.store import PageStore
from scripts import converse, make_conversations
from tests.host import ENGINES, port_of, serving

INDEX: dict[str, Any] = json.loads((make_conversations.FOLDER / "index.json").read_text())


def played(server: WorkerServer) -> Iterator[str]:
    """What differs, in all of them."""
    player = converse.Player(f"127.0.0.1:{port_of(server)}")
    for conversation in INDEX["conversations"]:
        yield from player.play(conversation)


@pytest.mark.parametrize("engine", ENGINES)
def test_our_worker_answers_as_is_written(engine: str) -> None:
    with serving(engine=engine) as server:
        assert list(played(server)) == []
        assert list(played(server)) == [], "with what the first round has left"


def test_a_worker_with_a_model_does_too() -> None:
    with serving(model=("tiny", TINY)) as server:
        assert list(played(server)) == []


def test_nothing_of_it_stays_in_the_worker() -> None:
    with serving() as server:
        list(played(server))
        assert len(server.store) == 0
        assert server.store.used_bytes == 0


Answer = Callable[..., Any]


def slightly_off(attend: Answer) -> Answer:
    def wrong(*args: Any) -> m.PartialReply:
        reply = attend(*args)
        return m.PartialReply(reply.o + np.float32(1e-4), reply.lse)

    return wrong


def of_any_shape(find: Answer) -> Answer:
    return lambda self, key, layer, geometry: self._pages.get((key, layer), (None, None))[0]


# What a worker may get wrong, each with the request at which it shows.
WRONG: list[tuple[type[Any], str, Callable[[Any], Any], str]] = [
    (Session, "_attend", slightly_off, "PartialReply.o"),
    (Session, "_have", lambda _: lambda self, request: m.HaveReply(b"\xff"), "HaveReply.bitmap"),
    (Session, "_drop_pages", lambda _: lambda self, request: m.Ok(), "where Error bad_request belongs"),
    (Session, "_release", lambda _: lambda self, request: m.Ok(), "where Error unknown_page belongs"),
    (PageStore, "release_all", lambda _: lambda self: None, "where Error unknown_page belongs"),
    (PageStore, "_find", of_any_shape, "HaveReply.bitmap"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "method", "wrong", "shows"), WRONG, ids=[method.strip("_") for _, method, _, _ in WRONG]
)
def test_a_wrong_worker_is_found_out(
    owner: type[Any],
    method: str,
    wrong: Callable[[Any], Any],
    shows: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, wrong(getattr(owner, method)))
    with serving() as server:
        found = list(played(server))
    assert any(shows in text for text in found), found


def test_the_script_makes_these_files() -> None:
    """But for the last bits of partials, which are those of a platform's exp; these cross in FoldOnto, too."""
    (made,) = make_conversations.files().values()
    anew = json.loads(made)["conversations"]
    assert [c["name"] for c in anew] == [c["name"] for c in INDEX["conversations"]]
    for ours, theirs in zip(anew, INDEX["conversations"], strict=True):
        for a, b in zip(ours["steps"], theirs["steps"], strict=True):
            loose = ("fields",) if a["tolerances"] else ("send",) if a["request"] == "FoldOnto" else ()
            assert {k: v for k, v in a.items() if k not in loose} == {
                k: v for k, v in b.items() if k not in loose
            }

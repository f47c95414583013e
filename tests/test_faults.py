"""A link cut, stalled or damaged anywhere: right tokens or a named error, never a hang, and a good next request."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from backburner.engine import worker_link
from backburner.engine.runner import ModelRunner
from backburner.errors import RemoteError, TransportError, WorkerLost
from backburner.transport import link as link_module
from backburner.transport.link import Link
from backburner.transport.messages import Kind
from backburner.transport.tcp import connect
from backburner.worker.server import WorkerServer
from tests.cable import Cable, Direction, Fault, frames
from tests.host import generate, host, long_prompt, port_of, serving
from tests.processes import until

# Two ubatches, so that pages are held while a read still goes on; then some decode.
PROMPT = long_prompt()[:300]
TOKENS = 4
SIZES = {"page_tokens": 32, "window_tokens": 64}

# A stalled link is found after this long; anything that takes much longer hangs.
TIMEOUT_S = 0.5
# Links without a fault get longer, so that a busy machine is not taken for one.
HEALTHY_TIMEOUT_S = 10.0
HANGS_S = 20.0

UP = [Kind.HELLO, Kind.PING, Kind.HAVE, Kind.PUT_PAGE, Kind.BIND, Kind.ATTEND]
DOWN = [Kind.WELCOME, Kind.PONG, Kind.HAVE_REPLY, Kind.PAGE_ACK, Kind.OK, Kind.PARTIAL_REPLY]
PLACES = [*(("up", kind) for kind in UP), *(("down", kind) for kind in DOWN)]

# One bit of each field of a header: magic, version, kind, flags, tag, both lengths, check.
HEADER_BITS = [
    (0, 3),
    (4, 0),
    (5, 0),
    (5, 4),
    (6, 0),
    (8, 0),
    (9, 6),
    (12, 0),
    (16, 2),
    (22, 5),
    (25, 1),
]


@pytest.fixture(autouse=True, scope="module")
def short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        _shorten(monkeypatch)
        yield


def _shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "RETRY_INTERVAL_S", 0.0)
    # Measuring the link is most of its bytes otherwise.
    monkeypatch.setattr(link_module, "PROBE_PINGS", 4)
    monkeypatch.setattr(link_module, "BULK_PINGS", 1)
    monkeypatch.setattr(link_module, "BULK_BYTES", 4096)


@pytest.fixture(scope="module")
def alone() -> list[int]:
    with host(**SIZES) as runner:
        return generate(runner, PROMPT, TOKENS)[0]


@contextmanager
def wired(fault: Fault | None = None) -> Iterator[tuple[WorkerServer, Cable, Callable[[], Link]]]:
    with serving() as server:
        cable = Cable(port_of(server), fault)
        try:
            yield (
                server,
                cable,
                lambda: Link(
                    connect("127.0.0.1", cable.port), TIMEOUT_S if cable.faulty else HEALTHY_TIMEOUT_S
                ),
            )
        finally:
            cable.close()


@pytest.fixture(scope="module")
def streams(short_waits: None) -> dict[str, bytes]:
    """What crosses when nothing goes wrong; the tests choose their places in it."""
    with wired() as (_, cable, connect_to), host(connect_to, **SIZES) as runner:
        generate(runner, PROMPT, TOKENS)
    return {direction: bytes(data) for direction, data in cable.passed.items()}


def place(streams: dict[str, bytes], direction: str, kind: Kind) -> tuple[int, int, int]:
    """A frame in the middle of those of its kind: its start, its body's start and its end."""
    found = [frame for frame in frames(streams[direction]) if frame[0] == kind]
    assert found, f"no {kind.name} crosses"
    return found[len(found) // 2][1:]


def survive(fault: Fault, alone: list[int]) -> BaseException | None:
    """Runs a request over a faulty cable and another over a good one. Gives the first one's error."""
    error: BaseException | None = None
    begun = time.monotonic()
    with wired(fault) as (server, cable, connect_to), ExitStack() as hosts:
        try:
            runner = hosts.enter_context(host(connect_to, **SIZES))
        except (TransportError, RemoteError) as e:
            # The greeting failed, so the server would not start; it is started again.
            error = e
            cable.heal()
            until(lambda: server._serving is None)
            runner = hosts.enter_context(host(connect_to, **SIZES))
        else:
            try:
                assert generate(runner, PROMPT, TOKENS)[0] == alone, f"{fault} changes the tokens"
            except (TransportError, RemoteError) as e:
                error = e
            assert error is None or isinstance(error, WorkerLost), f"{fault} gives {error!r}"
            cable.heal()
            if runner._worker.lost:
                until(lambda: server._serving is None)
        follow_up(runner, server, alone)
    assert time.monotonic() - begun < HANGS_S, f"{fault} hangs"
    return error


def follow_up(runner: ModelRunner, server: WorkerServer, alone: list[int]) -> None:
    """The next request gets the right tokens, and the worker is in use for it."""
    tokens, _ = generate(runner, PROMPT, TOKENS)
    assert tokens == alone
    assert runner._worker is not None
    if runner._worker.lost:
        # A late fault: it was this request that met it, with nothing held yet. The one after has a new link.
        until(lambda: server._serving is None)
        assert generate(runner, PROMPT, TOKENS)[0] == alone
    assert runner._worker.lost is None
    assert runner._worker.held_pages > 0


@pytest.mark.parametrize(("direction", "kind"), PLACES, ids=lambda value: getattr(value, "name", value))
def test_a_cut_anywhere_in_a_frame(
    streams: dict[str, bytes], alone: list[int], direction: Direction, kind: Kind
) -> None:
    start, body, end = place(streams, direction, kind)
    for at in sorted({start, start + 20, (body + end) // 2, end - 1}):
        survive(Fault("cut", direction, at), alone)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_after_any_share_of_the_bytes(
    streams: dict[str, bytes], alone: list[int], direction: Direction
) -> None:
    total = len(streams[direction])
    outcomes = [survive(Fault("cut", direction, total * i // 8 + 7 * i), alone) for i in range(8)]
    # Late ones find held pages, and the request cannot be answered then.
    assert any(isinstance(e, WorkerLost) for e in outcomes)


@pytest.mark.parametrize(
    ("direction", "kind"),
    [("up", Kind.PUT_PAGE), ("up", Kind.ATTEND), ("down", Kind.PAGE_ACK), ("down", Kind.PARTIAL_REPLY)],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_flipped_bit_in_a_header(
    streams: dict[str, bytes], alone: list[int], direction: Direction, kind: Kind
) -> None:
    start, _, _ = place(streams, direction, kind)
    for byte, bit in HEADER_BITS:
        survive(Fault("flip", direction, start + byte, bit), alone)


def test_a_flipped_bit_in_a_page_never_reaches_the_store(streams: dict[str, bytes], alone: list[int]) -> None:
    start, body, end = place(streams, "up", Kind.PUT_PAGE)
    for at in (start + 34, body - 1, body, body + 1000, (body + end) // 2, end - 1):
        # The link ends there. The read is still past the window with all pages here, and goes on alone.
        assert survive(Fault("flip", "up", at, 6), alone) is None


def test_a_link_lost_while_pages_cross_costs_nothing_when_none_is_held(
    streams: dict[str, bytes], alone: list[int]
) -> None:
    """Some pages are bound by then, but the host still has them."""
    assert survive(Fault("cut", "up", place(streams, "up", Kind.PUT_PAGE)[1]), alone) is None
    assert survive(Fault("cut", "down", place(streams, "down", Kind.PAGE_ACK)[0]), alone) is None


def test_a_link_lost_when_pages_are_held_is_told_by_name(streams: dict[str, bytes], alone: list[int]) -> None:
    for direction, kind in (("up", Kind.ATTEND), ("down", Kind.PARTIAL_REPLY)):
        error = survive(Fault("cut", direction, place(streams, direction, kind)[0] + 5), alone)
        assert isinstance(error, WorkerLost)
        assert "Send the request again" in str(error)


@pytest.mark.parametrize(
    ("direction", "kind"),
    [
        ("up", Kind.HELLO),
        ("up", Kind.PUT_PAGE),
        ("up", Kind.ATTEND),
        ("down", Kind.WELCOME),
        ("down", Kind.PAGE_ACK),
        ("down", Kind.PARTIAL_REPLY),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_stall_ends_at_the_deadline(
    streams: dict[str, bytes], alone: list[int], direction: Direction, kind: Kind
) -> None:
    start, _, _ = place(streams, direction, kind)
    survive(Fault("stall", direction, start + 10), alone)

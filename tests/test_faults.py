"""A link cut, stalled or damaged anywhere: with a spill the right tokens, without one those or a named error; never a
hang, and a good next request with the worker in use again."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from backburner.engine import worker_link
from backburner.engine.runner import ModelRunner
from backburner.errors import RemoteError, TransportError, WorkerBusy, WorkerLost
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
    monkeypatch.setattr(worker_link, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(worker_link, "RETRY_INTERVAL_S", 0.05)
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


def faults(
    streams: dict[str, bytes],
    what: Literal["cut", "stall", "flip"],
    direction: Direction,
    kind: Kind,
    places: Callable[[int, int], list[tuple[int, int]]],
) -> list[Fault]:
    """Faults in the middle one of a kind's frames. places(body, end): bytes of the frame and bits of these."""
    found = [frame for frame in frames(streams[direction]) if frame[0] == kind]
    assert found, f"no {kind.name} crosses"
    number = len(found) // 2
    _, start, body, end = found[number]
    return [Fault(what, direction, at, bit, (kind, number)) for at, bit in places(body - start, end - start)]


def at(*bytes_: int) -> Callable[[int, int], list[tuple[int, int]]]:
    return lambda body, end: [(byte, 0) for byte in bytes_]


def started_again(hosts: ExitStack, connect_to: Callable[[], Link], spill: Path | None) -> ModelRunner:
    """A host for a worker that may not have noticed yet that the one before is gone."""
    end = time.monotonic() + HANGS_S
    while True:
        try:
            return hosts.enter_context(host(connect_to, **SIZES, spill_folder=spill))
        except WorkerBusy:
            assert time.monotonic() < end, "the worker stays busy"
            time.sleep(0.02)


def survive(fault: Fault, alone: list[int], spill: Path | None = None) -> BaseException | None:
    """Runs a request over a faulty cable and others over a good one. Gives the first one's error."""
    error: BaseException | None = None
    begun = time.monotonic()
    with wired(fault) as (_, cable, connect_to), ExitStack() as hosts:
        try:
            runner = hosts.enter_context(host(connect_to, **SIZES, spill_folder=spill))
        except (TransportError, RemoteError) as e:
            # The greeting failed, so the server would not start; it is started again.
            error = e
            cable.heal()
            runner = started_again(hosts, connect_to, spill)
        else:
            error = request(runner, alone, fault, spill)
            cable.heal()
        follow_up(runner, alone, fault, spill)
    assert time.monotonic() - begun < HANGS_S, f"{fault} hangs"
    return error


def request(runner: ModelRunner, alone: list[int], fault: Fault, spill: Path | None) -> BaseException | None:
    """Right tokens; the loss of held pages is the one error that may come instead, and only without a spill."""
    error: BaseException | None = None
    try:
        assert generate(runner, PROMPT, TOKENS)[0] == alone, f"{fault} changes the tokens"
    except (TransportError, RemoteError) as e:
        error = e
    allowed = () if spill else (WorkerLost,)
    assert error is None or isinstance(error, allowed), f"{fault} gives {error!r}"
    return error


def follow_up(runner: ModelRunner, alone: list[int], fault: Fault, spill: Path | None) -> None:
    """The worker comes back by itself, and the next request gets the right tokens with it."""
    (worker,) = runner.workers
    until(lambda: worker.connection is not None, what=f"after {fault} the worker does not come back")
    before = worker.connection
    error = request(runner, alone, fault, spill)
    if worker.connection is not before:
        # A late fault, of a link that was made before the cable was healed. All links from now on are good.
        until(lambda: worker.connection is not None, what=f"after {fault} the worker does not come back")
        error = request(runner, alone, fault, spill)
    assert error is None
    assert worker.lost is None
    assert worker.held_pages > 0


@pytest.fixture(params=["no spill", "spill"])
def spill(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "spill" else None


@pytest.mark.parametrize(("direction", "kind"), PLACES, ids=lambda value: getattr(value, "name", value))
def test_a_cut_anywhere_in_a_frame(
    streams: dict[str, bytes], alone: list[int], direction: Direction, kind: Kind, spill: Path | None
) -> None:
    def places(body: int, end: int) -> list[tuple[int, int]]:
        return [(byte, 0) for byte in sorted({0, 20, (body + end) // 2, end - 1})]

    for fault in faults(streams, "cut", direction, kind, places):
        survive(fault, alone, spill)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_after_any_share_of_the_bytes(
    streams: dict[str, bytes], alone: list[int], direction: Direction, spill: Path | None
) -> None:
    total = len(streams[direction])
    outcomes = [survive(Fault("cut", direction, total * i // 8 + 7 * i), alone, spill) for i in range(8)]
    # Late ones find held pages, and without a copy of them the request cannot be answered.
    assert any(isinstance(e, WorkerLost) for e in outcomes) is (spill is None)


@pytest.mark.parametrize(
    ("direction", "kind"),
    [("up", Kind.PUT_PAGE), ("up", Kind.ATTEND), ("down", Kind.PAGE_ACK), ("down", Kind.PARTIAL_REPLY)],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_flipped_bit_in_a_header(
    streams: dict[str, bytes], alone: list[int], direction: Direction, kind: Kind, tmp_path: Path
) -> None:
    found = faults(streams, "flip", direction, kind, lambda body, end: HEADER_BITS)
    for number, fault in enumerate(found):
        # In turns, and the other way round for the other direction: each takes as long as the rest of a test.
        spilled = (number + (direction == "up")) % 2 == 0
        survive(fault, alone, tmp_path if spilled else None)


def test_a_flipped_bit_in_a_page_never_reaches_the_store(streams: dict[str, bytes], alone: list[int]) -> None:
    def places(body: int, end: int) -> list[tuple[int, int]]:
        return [(byte, 6) for byte in (34, body - 1, body, body + 1000, (body + end) // 2, end - 1)]

    for fault in faults(streams, "flip", "up", Kind.PUT_PAGE, places):
        # The link ends there. The read is still past the window with all pages here, and goes on alone.
        assert survive(fault, alone) is None


def test_a_link_lost_while_pages_cross_costs_nothing_when_none_is_held(
    streams: dict[str, bytes], alone: list[int]
) -> None:
    """Some pages are bound by then, but the host still has them."""
    (in_page,) = faults(streams, "cut", "up", Kind.PUT_PAGE, lambda body, end: [(body, 0)])
    (in_ack,) = faults(streams, "cut", "down", Kind.PAGE_ACK, at(0))
    assert survive(in_page, alone) is None
    assert survive(in_ack, alone) is None


def test_a_link_lost_when_pages_are_held_is_told_by_name(streams: dict[str, bytes], alone: list[int]) -> None:
    for direction, kind in (("up", Kind.ATTEND), ("down", Kind.PARTIAL_REPLY)):
        (fault,) = faults(streams, "cut", direction, kind, at(5))
        error = survive(fault, alone)
        assert isinstance(error, WorkerLost)
        assert "Send the request again" in str(error)


def test_a_link_lost_when_pages_are_held_costs_nothing_with_a_spill(
    streams: dict[str, bytes], alone: list[int], tmp_path: Path
) -> None:
    for direction, kind in (("up", Kind.ATTEND), ("down", Kind.PARTIAL_REPLY)):
        (fault,) = faults(streams, "cut", direction, kind, at(5))
        assert survive(fault, alone, tmp_path) is None


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
    streams: dict[str, bytes], alone: list[int], direction: Direction, kind: Kind, spill: Path | None
) -> None:
    (fault,) = faults(streams, "stall", direction, kind, at(10))
    survive(fault, alone, spill)

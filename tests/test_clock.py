"""Deadlines from measured replies: never too soon for a worker that keeps its pace, soon for one that is frozen."""

from hypothesis import given
from hypothesis import strategies as st

from backburner.transport.clock import FADE, FLOOR_S, MARGIN, ReplyClock

SLOWEST_S = 1e-3
FIRST_S = 10.0

replies = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e3)), min_size=1, max_size=30)


def clock() -> ReplyClock:
    return ReplyClock(SLOWEST_S, FIRST_S)


def test_before_any_reply_the_slowest_worker_worth_waiting_for_is_assumed() -> None:
    assert clock().deadline_s(0) == FIRST_S
    assert clock().deadline_s(5000) == FIRST_S + 5.0


@given(replies)
def test_the_last_reply_would_have_been_waited_for_with_a_margin(seen: list[tuple[float, float]]) -> None:
    one = clock()
    for units, seconds in seen:
        one.observe(units, seconds)
    units, seconds = seen[-1]
    units = max(units, 1.0)  # a request of less than one unit counts as one
    slowest_s = FIRST_S + units * SLOWEST_S
    assert one.deadline_s(units) >= min(slowest_s, MARGIN * seconds * (1 - 1e-9))


@given(replies, st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_deadline_is_shorter_than_a_busy_moment_and_more_work_gets_more_time(
    seen: list[tuple[float, float]], units: float, more: float
) -> None:
    one = clock()
    for observed in seen:
        one.observe(*observed)
    assert FLOOR_S <= one.deadline_s(units) <= one.deadline_s(units + more)


@given(replies, st.floats(0, 1e6))
def test_no_deadline_is_longer_than_for_the_slowest_worker_worth_waiting_for(
    seen: list[tuple[float, float]], units: float
) -> None:
    one = clock()
    for observed in seen:
        one.observe(*observed)
    assert one.deadline_s(units) <= FIRST_S + units * SLOWEST_S


def test_a_hiccup_in_a_request_of_little_work_does_not_make_one_of_much_wait_for_hours() -> None:
    """One token over two pages, and a ubatch over sixteen."""
    one = clock()
    one.observe(1 * 2, 0.9)
    assert one.deadline_s(256 * 16) == FIRST_S + 256 * 16 * SLOWEST_S


@given(st.floats(1e-6, 1e-2), st.integers(1, 10_000))
def test_a_steady_worker_is_given_up_after_a_small_multiple_of_its_reply(rate_s: float, units: int) -> None:
    one = clock()
    for _ in range(20):
        one.observe(units, units * rate_s)
    assert one.deadline_s(units) <= max(FLOOR_S, MARGIN * units * rate_s + FLOOR_S) * (1 + 1e-9)


def test_one_hiccup_fades() -> None:
    one = clock()
    one.observe(100, 1.0)
    assert one.deadline_s(100) >= MARGIN * 1.0
    patience = []
    for _ in range(500):
        one.observe(100, 0.01)
        patience.append(one.deadline_s(100))
    assert patience == sorted(patience, reverse=True)
    assert patience[99] <= MARGIN * 2 * FADE**99
    assert patience[-1] == FLOOR_S


def test_a_small_request_with_a_long_round_trip_is_not_given_up_early() -> None:
    """What a reply takes is not only its work: the first token over a slow link counts for the flat part too."""
    one = clock()
    one.observe(1e9, 0.1)
    assert one.deadline_s(1) >= FLOOR_S > 0.1

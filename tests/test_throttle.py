"""A throttled worker takes its factor longer, and each piece of time counts once."""

import threading
import time

import pytest

from backburner.errors import ConfigError
from backburner.worker import throttle as module
from backburner.worker.throttle import Throttle


class Clock:
    """A clock that moves only when told, and what was slept on it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_block_sleeps_the_rest_of_its_longer_time(clock: Clock) -> None:
    throttle = Throttle(1.5)
    for seconds in (2.0, 4.0):
        with throttle:
            clock.now_s += seconds
    assert clock.slept_s == [1.0, 2.0]


def test_nested_blocks_count_once(clock: Clock) -> None:
    throttle = Throttle(3)
    with throttle:
        clock.now_s += 1
        with throttle, throttle:
            clock.now_s += 1
        assert clock.slept_s == []
    assert clock.slept_s == [4.0]


def test_a_block_that_fails_is_slow_too_and_leaves_nothing_open(clock: Clock) -> None:
    throttle = Throttle(2)

    def fail() -> None:
        with throttle:
            clock.now_s += 1
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
    assert clock.slept_s == [1.0, 1.0]


def test_a_factor_of_one_never_sleeps(clock: Clock) -> None:
    with Throttle(1.0):
        clock.now_s += 5
    assert clock.slept_s == []


def test_threads_have_blocks_of_their_own(clock: Clock) -> None:
    throttle = Throttle(2)

    def other() -> None:
        with throttle:
            pass

    with throttle:
        clock.now_s += 1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert clock.slept_s == [0.0]
    assert clock.slept_s == [0.0, 1.0]


def test_real_time_passes() -> None:
    start = time.monotonic()
    with Throttle(3):
        time.sleep(0.05)
    assert time.monotonic() - start >= 0.14


@pytest.mark.parametrize("factor", [0.99, 0, -1, float("nan"), float("inf")])
def test_a_factor_below_one_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="must be a number from 1 on"):
        Throttle(factor)

"""The seam of a split read, against the calibrated cost model's table and against trying every seam."""

import dataclasses
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.engine.seam import SeamChooser
from backburner.planner.seam import GAIN_MIN, HYSTERESIS, TIE, Speeds, best_seam, step_us

LAYERS, CYCLE = 64, 4


def speeds(worker_rate: float, link_us: float = 0.0) -> Speeds:
    """A worker of this speed, relative to a host that takes 1 us for a layer."""
    return Speeds(LAYERS, 1.0, 1 / worker_rate, link_us)


# Table (a) of the cost model that was fitted to the first Backburner's figures, for a worker whose attention is as
# fast as the rest of it.
TABLE = [(0.29, 52, 1.23), (0.5, 44, 1.45), (0.69, 40, 1.60), (1.0, 32, 2.00), (1.5, 24, 2.40)]


@pytest.mark.parametrize(("rate", "seam", "speed_up"), TABLE)
def test_the_seam_and_its_speed_up_are_those_of_the_cost_model(
    rate: float, seam: int, speed_up: float
) -> None:
    assert best_seam(speeds(rate), CYCLE) == seam
    assert LAYERS / step_us(seam, speeds(rate)) == pytest.approx(speed_up, abs=0.005)


measured = st.builds(
    Speeds,
    layers=st.integers(1, 24).map(lambda cycles: 4 * cycles),
    host_layer_us=st.floats(1, 1e5),
    worker_layer_us=st.floats(1, 1e5),
    link_us=st.floats(0, 1e6),
)


@given(measured)
def test_no_other_seam_is_clearly_better(s: Speeds) -> None:
    alone = s.layers * s.host_layer_us
    fastest = min((step_us(seam, s) for seam in range(CYCLE, s.layers, CYCLE)), default=alone)
    seam = best_seam(s, CYCLE)
    if seam is None:
        assert alone < fastest * (1 + TIE) * GAIN_MIN
    else:
        assert seam % CYCLE == 0
        assert 0 < seam < s.layers
        assert step_us(seam, s) <= fastest * (1 + TIE)
        assert alone >= step_us(seam, s) * GAIN_MIN


@given(measured, st.integers(1, 23).map(lambda cycles: 4 * cycles))
def test_a_seam_in_use_is_left_only_for_a_clearly_better_one(s: Speeds, current: int) -> None:
    seam = best_seam(s, CYCLE, current)
    fresh = best_seam(s, CYCLE)
    if seam not in (None, current):
        assert seam == fresh
        # The better of the two around the balance, of which `fresh` may be the larger one.
        assert current >= s.layers or step_us(current, s) * (1 + TIE) > step_us(fresh, s) * (1 + HYSTERESIS)


def test_a_small_change_of_speed_moves_no_seam_and_a_hot_phone_does() -> None:
    assert best_seam(speeds(0.69), CYCLE, current=40) == 40
    assert best_seam(speeds(0.65), CYCLE, current=40) == 40
    assert best_seam(speeds(0.73), CYCLE, current=40) == 40
    assert best_seam(speeds(0.45), CYCLE, current=40) == 44
    assert best_seam(speeds(0.29), CYCLE, current=40) == 52


def test_of_two_seams_that_are_as_good_as_equal_the_larger_is_taken() -> None:
    """The tail's speed is what changes, with heat; the head's does not."""
    at_36, at_40 = step_us(36, speeds(0.7)), step_us(40, speeds(0.7))
    assert at_36 == at_40 == pytest.approx(40)
    assert best_seam(speeds(0.7), CYCLE) == 40
    slower_link = dataclasses.replace(speeds(0.7), link_us=45.0)
    assert best_seam(slower_link, CYCLE) == 40


def test_a_worker_that_is_too_slow_gets_no_layers() -> None:
    assert best_seam(speeds(0.05), CYCLE) is None
    assert best_seam(speeds(0.05), CYCLE, current=60) is None


@pytest.mark.parametrize("current", [None, 40])
def test_a_link_that_takes_as_long_as_the_host_alone_is_not_used(current: int | None) -> None:
    assert best_seam(speeds(0.69, link_us=60.0), CYCLE, current) is not None
    assert best_seam(speeds(0.69, link_us=63.0), CYCLE, current) is None
    assert best_seam(speeds(100.0, link_us=1e6), CYCLE, current) is None


def test_a_model_of_one_cycle_is_not_cut() -> None:
    assert best_seam(Speeds(4, 1.0, 0.1, 0.0), CYCLE) is None


def test_over_a_slow_link_the_start_is_told_with_which_numbers_splitting_does_not_pay() -> None:
    worker = SimpleNamespace(
        connection=object(), welcome=SimpleNamespace(layers=8), speed=SimpleNamespace(bytes_per_s=1e6)
    )
    model = SimpleNamespace(layers=[None] * 8)
    chooser = SeamChooser(model, CYCLE, [worker], lambda *_: b"", lambda: 1, None, 512, 720_896)
    chooser.observe_host(8, 9.0)  # cold, not counted
    chooser.observe_host(8, 0.08)
    chooser.prepare()
    assert chooser.note == (
        "splitting reads would not pay: for one ubatch a layer takes 10.00 ms here and 10.00 ms on the worker, "
        "their bytes 720.90 ms on the link; split at layer 4 of 8, reading would be 0.11 times as fast"
    )

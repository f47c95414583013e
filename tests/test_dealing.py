"""Old pages dealt to several workers: all that fit, none too many, each worker by its speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.kv.dealing import deal

workers = st.lists(st.tuples(st.integers(0, 300), st.floats(0.1, 100)), min_size=1, max_size=5)


@given(st.integers(0, 500), workers)
def test_as_many_pages_as_fit_are_dealt_and_nobody_gets_more_than_is_free(
    pages: int, workers: list[tuple[int, float]]
) -> None:
    free, speed = [f for f, _ in workers], [s for _, s in workers]
    counts = deal(pages, free, speed)
    assert sum(counts) == min(pages, sum(free))
    assert all(0 <= count <= room for count, room in zip(counts, free, strict=True))


@given(st.integers(0, 500), st.lists(st.floats(0.1, 100), min_size=1, max_size=5))
def test_shares_are_proportional_to_speed_within_a_page(pages: int, speed: list[float]) -> None:
    counts = deal(pages, [pages] * len(speed), speed)
    for count, mine in zip(counts, speed, strict=True):
        assert abs(count - pages * mine / sum(speed)) < 1 + 1e-9


@pytest.mark.parametrize(
    ("pages", "free", "speed", "counts"),
    [
        (5, [9, 9, 9], [1, 1, 1], [2, 2, 1]),
        (10, [100, 100], [1.0, 0.25], [8, 2]),
        (10, [100, 3], [1, 1], [7, 3]),  # what one cannot take goes to the others
        (10, [2, 3], [1, 1], [2, 3]),  # the rest stays with the host
        (3, [0, 9], [100, 1], [0, 3]),
        (4, [], [], []),
    ],
)
def test_examples(pages: int, free: list[int], speed: list[float], counts: list[int]) -> None:
    assert deal(pages, free, speed) == counts

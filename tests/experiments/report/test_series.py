"""Series: few points that show what many did."""

import math

from hypothesis import given
from hypothesis import strategies as st

from experiments.report.series import cumulated, thin, windows

_points = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=300)


@given(_points, st.integers(4, 40))
def test_thinned_points_are_few_and_keep_ends_and_peaks(
    points: list[tuple[int, int]], most: int
) -> None:
    points.sort(key=lambda point: point[0])
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    thin_xs, thin_ys = thin(xs, ys, most)
    kept = list(zip(thin_xs, thin_ys, strict=True))
    assert len(kept) <= most
    rest = iter(zip(xs, ys, strict=True))
    assert all(point in rest for point in kept)  # some of them, in their order
    if points:
        assert kept[0] == (xs[0], ys[0])
        assert kept[-1] == (xs[-1], ys[-1])
        assert (min(thin_ys), max(thin_ys)) == (min(ys), max(ys))


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(0, 20), st.integers(2, 30))
def test_what_is_cumulated_is_the_share_that_does_not_exceed(
    values: list[int], unanswered: int, most: int
) -> None:
    of = max(1, len(values) + unanswered)
    xs, shares = cumulated(values, of, most)
    assert len(xs) <= most + 1
    assert list(shares) == sorted(shares)
    for x, share in zip(xs, shares, strict=True):
        below, upto = sum(v < x for v in values), sum(v <= x for v in values)
        assert below / of < share <= upto / of
    if values:
        assert (xs[0], xs[-1]) == (min(values), max(values))
        assert shares[-1] == len(values) / of


@given(_points)
def test_every_point_is_in_one_window(points: list[tuple[int, int]]) -> None:
    found = windows([(at, value) for at, value in points], 1000.0, (50, 100), 40)
    assert found.length_s == 30.0
    assert len(found.middles) == 34
    for i, most in enumerate(found.percentiles[100]):
        within = [value for at, value in points if i * 30 <= at < (i + 1) * 30]
        assert (math.isnan(most) and not within) or most == max(within)


def test_the_last_moment_is_in_the_last_window() -> None:
    found = windows([(60.0, 1.0)], 60.0, (50,), 60)
    assert found.percentiles[50][-1] == 1.0


def test_windows_of_years() -> None:
    found = windows([(1e9, 1.0)], 1e9, (50,), 60)
    assert len(found.middles) <= 61
    assert found.percentiles[50][-1] == 1.0

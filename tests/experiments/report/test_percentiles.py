"""Percentiles: against their definition, counted out."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from experiments.report.percentiles import Spread, percentile

_values = st.lists(st.integers(0, 20), min_size=1, max_size=40)


@given(_values, st.integers(1, 100))
def test_a_percentile_is_the_smallest_that_enough_do_not_exceed(
    values: list[int], percent: int
) -> None:
    enough = Fraction(percent, 100) * len(values)
    plain = min(v for v in values if sum(other <= v for other in values) >= enough)
    assert percentile(sorted(values), percent) == plain


def test_rounding_moves_no_percentile() -> None:
    # 0.55 * 100 is a little above 55 in floating point: its rank would be 56.
    assert percentile(range(1, 101), 55) == 55
    assert percentile(range(1, 101), 29) == 29


def test_a_spread_is_of_what_there_is() -> None:
    assert Spread.of([None, 3.0, 1.0, None, 2.0]) == Spread(3, 2.0, 2.0, 3.0, 3.0, 3.0)


def test_a_zero_is_a_value() -> None:
    assert Spread.of([0.0, None, 2.0]) == Spread(2, 1.0, 0.0, 2.0, 2.0, 2.0)


def test_of_nothing_there_is_no_spread() -> None:
    assert Spread.of([None, None]) is None

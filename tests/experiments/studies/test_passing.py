"""Who passed whom, against a model that looks at all pairs; and what scheduling promises of it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.loads.rules import with_priorities
from experiments.simulator.outcome import Outcome
from experiments.studies.passing import longest_passed_s
from tests.experiments.simulator.runs import poisson, run

MOMENTS = st.integers(0, 6).map(float)


@st.composite
def outcomes(draw: st.DrawFn) -> list[Outcome]:
    made = []
    for index in range(draw(st.integers(0, 8))):
        at, after = draw(MOMENTS), draw(st.none() | MOMENTS)
        placed_at = None if after is None else at + after
        made.append(Outcome(index, at, draw(st.integers(0, 2)), "", 1, placed_at=placed_at))
    return made


def model(all_of: list[Outcome], low: int, high: int) -> float | None:
    """What is said of pairs, pair by pair."""
    lower = [one for one in all_of if one.priority == low]
    by = [
        later.at - one.at
        for one in lower
        for later in all_of
        if later.priority == high
        and later.placed_at is not None
        and (one.placed_at is None or later.placed_at < one.placed_at)
    ]
    return max(0.0, *by, 0.0) if lower else None


@given(outcomes())
def test_as_the_pairs_say(made: list[Outcome]) -> None:
    assert longest_passed_s(made, 0, 2) == model(made, 0, 2)


def test_one_that_waits_for_ever_is_passed_by_all_that_are_placed() -> None:
    starved = Outcome(0, 1.0, 0, "", 1)
    later = Outcome(1, 9.0, 2, "", 1, placed_at=9.5)
    never = Outcome(2, 99.0, 2, "", 1)
    assert longest_passed_s([starved, later, never], 0, 2) == 8.0


@pytest.mark.parametrize(("aging_s", "reached"), [(0.5, True), (3.0, True), (1e6, False)])
def test_in_a_crowd_nobody_is_passed_by_those_that_come_later_than_aging_allows(
    aging_s: float, reached: bool
) -> None:
    crowd = with_priorities(poisson(60, 10), "2:0.2,1:0.4,0:0.4", Random(0))
    outcomes = run(crowd, aging_seconds=aging_s, max_num_seqs=4, max_queued=1000).outcomes
    for high in (1, 2):
        passed = longest_passed_s(outcomes, 0, high)
        assert passed is not None
        assert passed <= high * aging_s + 0.002  # arrivals are told in whole milliseconds
        # Strict order would let them pass for as long as the crowd lasts.
        assert (passed > 0.9 * high * aging_s) == reached


def test_the_latest_that_passed_counts_and_not_the_last() -> None:
    passed = Outcome(0, 1.0, 0, "", 1, placed_at=9.0)
    latest = Outcome(1, 5.0, 2, "", 1, placed_at=6.0)
    last = Outcome(2, 3.0, 2, "", 1, placed_at=8.0)
    assert longest_passed_s([passed, latest, last], 0, 2) == 4.0

"""A bucket of seconds: what may be spent at once, and for each token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.time_budget import OverBudget, TimeBudget


def test_much_may_be_spent_at_once_but_not_more() -> None:
    budget = TimeBudget(0.25, 0.005)
    budget.spend(0.25)
    with pytest.raises(OverBudget, match="more than 5 ms a token, 250 ms beyond that"):
        budget.spend(0.001)


def test_what_tokens_add_never_exceeds_what_it_holds() -> None:
    """An answer of many cheap tokens saved up for one that holds everybody up for seconds."""
    budget = TimeBudget(0.25, 0.005)
    for _ in range(1_000):
        budget.add_token()
    with pytest.raises(OverBudget):
        budget.spend(0.26)


def test_one_that_is_overdrawn_stays_so() -> None:
    """Asked again, the work would be done again, at everybody's cost."""
    budget = TimeBudget(1.0, 1.0)
    with pytest.raises(OverBudget):
        budget.spend(1.5)
    for _ in range(9):
        budget.add_token()
    with pytest.raises(OverBudget):
        budget.spend(0.0)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 100), st.integers(1, 20))
def test_no_run_of_tokens_takes_more_than_its_share_and_the_burst(
    costs: list[int], at_once: int, per_token: int
) -> None:
    budget = TimeBudget(at_once, per_token)
    spent: list[int] = []
    try:
        for cost in costs:
            budget.spend(cost)
            spent.append(cost)
            budget.add_token()
    except OverBudget:
        begins = [sum(costs[i : len(spent) + 1]) for i in range(len(spent) + 1)]
        assert any(
            total > at_once + (len(spent) - i) * per_token for i, total in enumerate(begins)
        ), "refused without need"
    for i in range(len(spent)):
        for j in range(i, len(spent)):
            assert sum(spent[i : j + 1]) <= at_once + (j - i) * per_token

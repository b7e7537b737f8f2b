"""Summary: worked out by hand, and adding up for any run."""

import pytest
from hypothesis import given

from experiments.report.percentiles import Spread
from experiments.report.summary import Group, summarise
from experiments.report.targets import Targets
from experiments.simulator.outcome import Run
from tests.experiments.report.runs import run, some_runs

TARGETS = Targets(1.0, None)


def test_a_run_in_figures() -> None:
    found = summarise(run(), TARGETS)
    everything = found.all
    assert (everything.requests, everything.answered) == (4, 2)
    assert (everything.refused, everything.failed, everything.moved) == (1, 1, 1)
    assert everything.within == 1
    assert everything.missed_share == 0.75
    assert everything.ttft_s == Spread(2, 1.75, 0.5, 3.0, 3.0, 3.0)
    assert everything.wait_s is not None
    assert everything.wait_s.most == 1.5
    assert everything.tpot_s is not None
    assert everything.tpot_s.most == pytest.approx(0.04)
    assert (everything.prompt_tokens, everything.cached_tokens) == (20, 8)
    assert everything.output_tokens == 12  # those of the answer that broke off are among them
    assert found.tokens_per_s == 1.2
    assert found.replica_hours == 20 / 3600
    assert (found.busy_share, found.mean_replicas, found.most_replicas) == (0.25, 2.0, 2)
    assert (found.most_queued, found.oldest_wait_s, found.most_used_share) == (3, 1.5, 0.75)
    assert [group.name for group in found.priorities] == ["5", "0"]
    assert [group.name for group in found.tenants] == ["a", "b"]


def test_times_are_of_whole_answers_only() -> None:
    # The answer that broke off had its first token after 0.5 s.
    found = summarise(run(), TARGETS)
    assert found.all.ttft_s is not None
    assert found.all.ttft_s.count == 2


def test_of_nothing_there_are_no_figures() -> None:
    nothing = run(outcomes=[], samples=[], seconds=0.0, replica_s=0.0, busy_s=0.0, counts={})
    found = summarise(nothing, TARGETS)
    assert found.all.missed_share is None
    assert found.all.cached_share is None
    assert found.all.ttft_s is None
    assert (found.tokens_per_s, found.busy_share, found.mean_replicas) == (None, None, None)
    assert (found.most_replicas, found.most_queued, found.most_used_share) == (None, None, None)
    assert (found.priorities, found.tenants) == ([], [])


@given(some_runs())
def test_the_parts_add_up_to_the_whole(runs: list[Run]) -> None:
    for one in runs:
        found = summarise(one, TARGETS)
        assert found.all.requests == len(one.outcomes)
        assert sum(found.reasons.values()) == found.all.refused + found.all.failed
        for groups in (found.priorities, found.tenants):
            for name in ("requests", "answered", "refused", "failed", "within",
                         "prompt_tokens", "cached_tokens", "output_tokens"):  # fmt: skip
                assert sum(getattr(group, name) for group in groups) == getattr(found.all, name)
        for group in (found.all, *found.priorities, *found.tenants):
            assert group.answered + group.refused + group.failed == group.requests
            assert group.within <= group.answered


def test_whether_requests_moved_is_not_said_where_nobody_tells() -> None:
    """Guards against: "0 moved" of a live server, on which requests did move."""
    found = summarise(run(kind="measured"), TARGETS)
    assert [one.moved for one in (found.all, *found.priorities, *found.tenants)] == [None] * 5


def test_the_most_urgent_comes_first_by_number_not_by_letter() -> None:
    outcomes = [*run().outcomes]
    for outcome, priority in zip(outcomes, (2, 10, -1, 2), strict=True):
        outcome.priority = priority
    found: list[Group] = list(summarise(run(outcomes=outcomes), TARGETS).priorities)
    assert [group.name for group in found] == ["10", "2", "-1"]

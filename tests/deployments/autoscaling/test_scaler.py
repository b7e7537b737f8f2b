"""When the number of replicas changes, over loads of all kinds."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.autoscaling import Demand, Scaler, State
from deployments.autoscaling.scaler import STALE_S
from tests.deployments.autoscaling.fleet import QUIET, SCALER, Change, run, with_load
from tests.deployments.autoscaling.test_policies import DEMANDS, POLICIES, SCALERS

UP_S = SCALER.scale_up_cooldown_s
DOWN_S = SCALER.scale_down_cooldown_s


def check_cooldowns(changes: Sequence[Change], scaler: Scaler) -> None:
    for before, after in pairwise(changes):
        rises = after.after > after.before
        least = scaler.scale_up_cooldown_s if rises else scaler.scale_down_cooldown_s
        assert after.at - before.at >= least or after.before == 0


def ups_after_downs(changes: Sequence[Change]) -> int:
    falls = [change.after < change.before for change in changes]
    return sum(fell and not falls_now for fell, falls_now in pairwise(falls))


@settings(max_examples=40, deadline=None)
@given(SCALERS, st.integers(1, 6), st.sampled_from([0.02, 0.3]), st.integers(0, 2**32))
def test_ray18925_constant_load_at_a_threshold_changes_at_most_once_a_cooldown(
    scaler: Scaler, replicas: int, noise: float, seed: int
) -> None:
    """Load that just fills the fleet, as the policy sees it, with noise."""
    full = scaler.target_utilization if scaler.policy == "blocks" else 1.0
    rng = Random(seed)
    loads = [replicas * full * rng.uniform(1 - noise, 1 + noise) for _ in range(900)]
    changes = run(scaler, loads, target=replicas)
    check_cooldowns(changes, scaler)
    # Better than asked: noise that is always there moves the fleet up, and it stays.
    assert ups_after_downs(changes) == 0
    if noise < 0.05 and scaler.policy == "blocks":
        assert len(changes) <= 1


@settings(max_examples=40, deadline=None)
@given(SCALERS, st.floats(0, 12), st.integers(1, 8), st.sampled_from([0, 5, 45]))
def test_a_constant_load_ends_in_a_constant_fleet(
    scaler: Scaler, load: float, target: int, start_s: int
) -> None:
    changes = run(scaler, [load] * 1_500, target, start_s)
    check_cooldowns(changes, scaler)
    assert ups_after_downs(changes) == 0
    assert not [change for change in changes if change.at > 900]


@settings(max_examples=40, deadline=None)
@given(SCALERS, st.sampled_from([0, 1, 2]), st.floats(0.5, 30), st.integers(1, 300))
def test_ray61551_a_burst_and_then_idle_ends_at_the_minimum(
    scaler: Scaler, fewest: int, load: float, burst_s: int
) -> None:
    scaler = replace(scaler, min_replicas=fewest)
    loads = [load] * burst_s + [0.0] * 1_200
    changes = run(scaler, loads, target=max(1, fewest))
    final = changes[-1].after if changes else max(1, fewest)
    assert final == fewest
    check_cooldowns(changes, scaler)


def test_ray61551_blocks_are_back_at_the_minimum_one_cooldown_after_the_burst() -> None:
    changes = run(SCALER, [5.0] * 100 + [0.0] * 200)
    assert changes == [Change(10.0, 1, 7), Change(100.0 + DOWN_S, 7, 1)]


@settings(deadline=None)
@given(
    SCALERS,
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.lists(st.tuples(st.none() | DEMANDS, st.integers(0, 9), st.floats(0, 1e3)), max_size=8),
)
def test_never_outside_the_bounds_whatever_is_known(
    scaler: Scaler, bounds: tuple[int, int], history: list[tuple[Demand | None, int, float]]
) -> None:
    """Bounds may be moved while the fleet is outside the new ones."""
    low, high = min(bounds), max(1, *bounds)
    scaler = replace(scaler, min_replicas=low, max_replicas=high)
    state = None
    for demand, target, now in history:
        wanted, state = scaler.decide(demand, target, now, state)
        assert low <= wanted <= high
        # Not to nothing in one go, and not before it was idle for long.
        if wanted == 0 and low <= target <= high and target > 0:
            assert target == 1
            assert demand is not None
            assert demand.idle_s >= scaler.scale_to_zero_s


@settings(deadline=None)
@given(SCALERS, st.lists(st.floats(0, 6), min_size=2, max_size=60))
def test_the_state_is_plain_data(scaler: Scaler, loads: list[float]) -> None:
    """Serve keeps it as a dict; nothing may depend on its being kept as it was."""
    scaler = replace(scaler, scale_up_cooldown_s=2.0, scale_down_cooldown_s=5.0)
    kept: State | None = None
    sent: State | None = None
    target = 1
    for second, load in enumerate(loads):
        demand = with_load(load, target, at=float(second), oldest_wait_s=load, ttft_s=load)
        wanted, kept = scaler.decide(demand, target, float(second), kept)
        again, sent = scaler.decide(demand, target, float(second), sent)
        assert (again, sent) == (wanted, kept)
        sent = State(**json.loads(json.dumps(asdict(sent))))
        target = wanted


def decide_each_second(
    scaler: Scaler, demands: Sequence[Demand | None], target: int, state: State | None = None
) -> list[int]:
    """What is wanted at each second, while nobody acts on it."""
    wanted = []
    for second, demand in enumerate(demands):
        if demand is not None:
            demand = replace(demand, at=float(second))
        number, state = scaler.decide(demand, target, float(second), state)
        wanted.append(number)
    return wanted


def test_a_rise_waits_for_its_cooldown_and_no_longer() -> None:
    wanted = decide_each_second(SCALER, [with_load(3.0, 1)] * 12, target=1)
    assert wanted.index(4) == UP_S


@pytest.mark.parametrize("load", [3.1, 9.0])
def test_a_fall_waits_until_the_load_was_low_for_the_whole_of_its_cooldown(load: float) -> None:
    low, spike = with_load(0.5, 4), with_load(load, 4)
    wanted = decide_each_second(SCALER, [low] * 50 + [spike] + [low] * 70, target=4)
    assert wanted.index(1) == 51 + DOWN_S


def test_a_fall_leaves_room_for_the_most_that_was_needed_meanwhile() -> None:
    low, middling = with_load(0.5, 4), with_load(2.0, 4)
    wanted = decide_each_second(SCALER, [low] * 50 + [middling] + [low] * 20, target=4)
    assert wanted[int(DOWN_S) :] == [3] * 11


def test_a_change_by_somebody_else_starts_the_cooldowns_too() -> None:
    """A redeploy or an operator sets the target; Serve itself wakes a deployment from 0."""
    demand = with_load(8.0, 2)
    _, state = SCALER.decide(replace(demand, at=1.0), 1, 1.0, None)
    wanted, state = SCALER.decide(replace(demand, at=20.0), 2, 20.0, state)
    assert wanted == 2
    wanted, _ = SCALER.decide(replace(demand, at=30.0), 2, 20.0 + UP_S, state)
    assert wanted == 8


def test_from_zero_at_once() -> None:
    scaler = replace(SCALER, min_replicas=0)
    asleep = replace(QUIET, replicas=0, total_blocks=0, free_blocks=0, seats=0)
    _, state = scaler.decide(replace(asleep, idle_s=900.0), 0, 0.0, None)
    assert scaler.decide(replace(asleep, at=0.1), 0, 0.1, state)[0] == 0
    assert scaler.decide(replace(asleep, at=0.1, queued=1), 0, 0.1, state)[0] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_to_zero_only_after_so_long_without_any_request(policy: str) -> None:
    scaler = replace(SCALER, policy=policy, min_replicas=0)
    state = None
    for second in range(400):
        demand = replace(QUIET, at=float(second), idle_s=float(second))
        wanted, state = scaler.decide(demand, 1, float(second), state)
        assert wanted == (1 if second < scaler.scale_to_zero_s else 0)


def test_to_zero_from_one_and_not_from_more() -> None:
    scaler = replace(SCALER, min_replicas=0)
    idle = [replace(with_load(0.0, 3), idle_s=900.0)] * 100
    assert decide_each_second(scaler, idle, target=3)[-1] == 1


def test_short_requests_now_and_then_keep_the_last_replica() -> None:
    """They begin and end between two looks; `idle_s` tells of them all the same."""
    scaler = replace(SCALER, min_replicas=0)
    demands = [replace(QUIET, idle_s=float(second % 250)) for second in range(900)]
    assert set(decide_each_second(scaler, demands, target=1)) == {1}


def test_replicas_that_are_not_there_yet_are_no_reason_to_want_fewer() -> None:
    """A new router knows of none; a replica that is being replaced takes its load with it."""
    nobody = replace(QUIET, replicas=0, total_blocks=0, free_blocks=0, seats=0)
    assert set(decide_each_second(SCALER, [nobody] * 200, target=3)) == {3}


@pytest.mark.parametrize("demand", [None, with_load(9.0, 2), with_load(0.0, 2)])
def test_what_is_not_heard_anew_changes_nothing(demand: Demand | None) -> None:
    """The router is gone; its last word is relayed on and on."""
    if demand is not None:
        demand = replace(demand, at=5.0)
    scaler = replace(SCALER, scale_up_cooldown_s=STALE_S + 1, scale_down_cooldown_s=STALE_S + 1)
    state = None
    for second in range(100):
        wanted, state = scaler.decide(demand, 2, float(second), state)
        assert wanted == 2


def test_silence_in_between_is_not_taken_for_a_low_load() -> None:
    low = with_load(0.5, 4)
    wanted = decide_each_second(SCALER, [low] * 30 + [None] * 20 + [low] * 70, target=4)
    assert wanted.index(1) == 50 + DOWN_S


def test_a_change_of_the_target_does_not_make_an_old_word_new() -> None:
    scaler = replace(SCALER, scale_up_cooldown_s=0.0)
    word = with_load(9.0, 2, at=5.0)
    _, state = scaler.decide(word, 8, 0.0, None)
    _, state = scaler.decide(word, 2, STALE_S + 1, state)
    assert scaler.decide(word, 2, STALE_S + 2, state)[0] == 2


def test_a_new_router_is_heard_though_its_clock_is_behind() -> None:
    _, state = SCALER.decide(with_load(9.0, 2, at=500.0), 2, 0.0, None)
    assert SCALER.decide(with_load(9.0, 2, at=3.0), 2, 100.0, state)[0] == 8


def test_a_clock_set_back_stretches_nothing() -> None:
    """By hours, perhaps; the cool-downs and the patience with a silent router are seconds."""
    _, late = SCALER.decide(with_load(0.1, 2, at=1.0), 2, 1e9, None)
    _, state = SCALER.decide(with_load(3.0, 2, at=2.0), 2, 100.0, late)
    assert SCALER.decide(with_load(3.0, 2, at=3.0), 2, 100.0 + UP_S, state)[0] == 4
    _, state = SCALER.decide(with_load(0.1, 2, at=2.0), 2, 100.0, late)
    assert SCALER.decide(with_load(0.1, 2, at=3.0), 2, 100.0 + DOWN_S, state)[0] == 1
    _, state = SCALER.decide(with_load(9.0, 2, at=1.0), 2, 100.0, late)
    assert SCALER.decide(with_load(9.0, 2, at=1.0), 2, 101.0 + STALE_S, state)[0] == 2

"""Replicas that come, go and fail, and what requests meet meanwhile."""

from itertools import pairwise
from typing import Any

import pytest

from deployments.messages import Refusal, RefusalKind
from deployments.patience import MAX_LOSSES
from experiments.loads.load import Arrival, Load
from experiments.simulator.errand import Errand
from experiments.simulator.fleet import Fleet
from experiments.simulator.gateway import SimulatedGateway
from experiments.simulator.outcome import Run
from experiments.simulator.replica import SimulatedReplica
from experiments.simulator.scenario import Failure
from experiments.simulator.simulation import simulate
from tests.experiments.simulator.runs import Linear, load, poisson, run, scenario


def statuses(run: Run) -> set[str]:
    return {one.status for one in run.outcomes}


def even(count: int, every_s: float, begin: float = 0.0, **given: Any) -> list[Arrival]:
    lengths = {"prompt_tokens": 20, "output_tokens": 20} | given
    return [Arrival(begin + every_s * place, **lengths) for place in range(count)]


# ---- failures ---------------------------------------------------------------------------


def test_what_a_crash_interrupts_goes_on_elsewhere_with_the_tokens_so_far() -> None:
    requests = load(even(8, 0.01, output_tokens=100))
    whole = run(requests, start_s=5.0)
    broken = run(requests, start_s=5.0, failures=(Failure(0.8),))
    assert statuses(broken) == {"ok"}
    assert broken.counts["resumed"] == 4
    moved = [one for one in broken.outcomes if one.attempts == 2]
    assert len(moved) == 4
    assert {one.replica for one in moved} == {"r1"}
    for before, after in zip(whole.outcomes, broken.outcomes, strict=True):
        assert after.output_tokens == 100
        assert after.first_token_at == before.first_token_at
        if after.attempts == 2:
            assert after.longest_gap_s > before.longest_gap_s
    # What was computed is not computed again as tokens, only as a prompt.
    assert broken.seconds < 2 * whole.seconds


def test_what_was_let_in_is_not_turned_away_by_a_full_queue() -> None:
    """Fault: those of a dead replica meet "full", with half an answer."""
    requests = load(even(8, 0.01, output_tokens=100))
    full: dict[str, Any] = {"max_queued": 0, "max_num_seqs": 4, "lookahead": 0}
    broken = run(requests, start_s=60.0, failures=(Failure(0.8),), **full)
    assert statuses(broken) == {"ok"}
    assert broken.counts["resumed"] == 4


def test_a_failed_replica_is_replaced_after_its_start_up_time() -> None:
    requests = load(even(400, 0.05))
    broken = run(requests, start_s=4.0, failures=(Failure(2.05),))
    by_second = {round(one.at): (one.serving, one.starting) for one in broken.samples}
    assert by_second[2] == (2, 0)
    assert by_second[3] == (1, 0)  # noticed by Serve a second after the fact
    assert by_second[5] == (1, 1)
    assert by_second[10] == (2, 0)
    assert any(one.replica == "r2" for one in broken.outcomes)


def test_a_silent_replica_is_lost_after_silent_s_and_its_requests_move() -> None:
    requests = load(even(4, 0.01, output_tokens=200) + even(300, 0.1))
    settings: dict[str, Any] = {"silent_s": 5.0, "heartbeat_s": 1.0}
    broken = run(requests, failures=(Failure(1.0, 0, "silence"),), **settings)
    assert statuses(broken) == {"ok"}
    moved = [one for one in broken.outcomes if one.attempts == 2]
    assert moved
    assert all(5.0 <= one.longest_gap_s <= 8.0 for one in moved if one.first_token_at < 1.0)
    # As soon as it is suspect nothing more goes there, long before it is lost.
    assert all(one.replica != "r0" for one in broken.outcomes if one.at > 4.0)


def test_a_request_that_survives_no_replica_fails_in_the_end() -> None:
    fleet = {"replicas": MAX_LOSSES + 2, "start_s": 100.0}
    # It is on the one that it was moved to last: of those that serve, any may be that.
    requests = load([Arrival(0.0, 10, 400)])
    failures = tuple(Failure(1.0 + place / 2, 0) for place in range(MAX_LOSSES + 1))
    (outcome,) = run(requests, failures=failures, **fleet).outcomes
    assert (outcome.status, outcome.reason) == ("failed", "server_error/internal_error")
    assert 0 < outcome.output_tokens < 400


def test_while_no_replica_serves_requests_wait_and_then_are_refused() -> None:
    requests = load(even(3, 1.0, begin=1.0))
    fleet: dict[str, Any] = {"replicas": 1, "failures": (Failure(0.5),)}
    soon = run(requests, start_s=10.0, hold_s=30.0, **fleet)
    assert statuses(soon) == {"ok"}
    late = run(requests, start_s=100.0, hold_s=30.0, **fleet)
    assert {one.reason for one in late.outcomes} == {"service_unavailable_error/no_replica"}
    assert statuses(late) == {"refused"}


def test_what_lost_its_only_replica_waits_for_hold_s_and_not_for_twice_that() -> None:
    """Fault: it begins to count when the router, which held it for as long, gives it back."""
    requests = load([Arrival(0.0, 20, 1_000)])
    fleet: dict[str, Any] = {"replicas": 1, "failures": (Failure(1.0),), "hold_s": 10.0}
    (late,) = run(requests, start_s=15.0, **fleet).outcomes
    assert (late.status, late.reason) == ("failed", "service_unavailable_error/no_replica")
    assert 0 < late.output_tokens < 1_000
    (soon,) = run(requests, start_s=5.0, **fleet).outcomes
    assert (soon.status, soon.attempts) == ("ok", 2)


def test_a_client_that_comes_back_meets_a_gateway_that_knows_nothing_of_its_last_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: the patience of the last try is over already, so the first miss ends this one."""
    misses: list[tuple[int, float]] = []
    miss = SimulatedGateway._miss

    def noted(gateway: SimulatedGateway, errand: Errand) -> None:
        misses.append((errand.tries, gateway._timeline.now))
        miss(gateway, errand)

    def gone(fleet: Fleet, name: str) -> None:
        return None

    monkeypatch.setattr(SimulatedGateway, "_miss", noted)
    monkeypatch.setattr(Fleet, "get", gone)
    (outcome,) = run(load([Arrival(0.0, 20, 5)]), hold_s=3.0, retries=2).outcomes
    assert (outcome.status, outcome.attempts) == ("refused", 0)
    for tries in (1, 2, 3):
        at = [when for one, when in misses if one == tries]
        assert 3.0 <= at[-1] - at[0] <= 3.0 + 1.1, f"try {tries}"


# ---- room -------------------------------------------------------------------------------


def test_nothing_is_placed_beyond_what_replicas_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the books of router and replica drift apart, and grants pile up on one."""
    most = 0
    take = SimulatedReplica.take

    def watched(replica: SimulatedReplica, errand: Any) -> Any:
        nonlocal most
        answer = take(replica, errand)
        stats = replica.scheduler.stats()
        most = max(most, stats.waiting)
        assert stats.running <= 4
        return answer

    monkeypatch.setattr(SimulatedReplica, "take", watched)
    result = run(poisson(20, 5), num_blocks=60, max_num_seqs=4, lookahead=1)
    assert statuses(result) == {"ok"}
    assert result.counts["bounces"] == 0
    # One beyond what fits; and those that fit wait for the step under way.
    assert 1 <= most <= 1 + 4
    assert result.samples[-1].queued == 0


def test_all_blocks_are_free_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas: list[SimulatedReplica] = []
    init = SimulatedReplica.__init__

    def noted(replica: SimulatedReplica, *args: Any) -> None:
        replicas.append(replica)
        init(replica, *args)

    monkeypatch.setattr(SimulatedReplica, "__init__", noted)
    run(poisson(6, 5), first_token_s=0.4, num_blocks=40, mtbf_s=4.0, start_s=1.0)
    assert len(replicas) > 2
    for replica in replicas:
        stats = replica.scheduler.stats()
        assert (stats.free_blocks, stats.running, stats.waiting) == (40, 0, 0)
        assert not replica.errands
        assert (replica.stretches.count, replica.stretches.context) == (0, 0)


def test_what_never_fits_is_turned_away_at_once() -> None:
    """Fault: an answer that is cut, where the server says 400."""
    lengths = [(10, 2_990), (10, 2_991), (10, 100_000), (4_000, 10)]
    requests = load([Arrival(place / 10, *both) for place, both in enumerate(lengths)])
    for limits in ({"max_model_len": 3_000}, {"num_blocks": 100, "block_size": 30}):
        first, *others = run(requests, retries=2, **limits).outcomes
        assert (first.status, first.output_tokens) == ("ok", 2_990)
        for one in others:
            assert (one.status, one.attempts, one.output_tokens) == ("failed", 0, 0)
            assert one.reason == "invalid_request_error/context_length_exceeded"


def test_a_full_queue_is_429_and_a_client_that_comes_back_is_served() -> None:
    requests = load(even(60, 0.001))
    small: dict[str, Any] = {"max_queued": 5, "max_num_seqs": 2, "lookahead": 0}
    once = run(requests, **small)
    assert statuses(once) == {"ok", "refused"}
    refused = [one for one in once.outcomes if one.status == "refused"]
    assert {one.reason for one in refused} == {"rate_limit_error/queue_full"}
    assert once.counts["busy"] == len(refused)
    again = run(requests, retries=30, **small)
    assert statuses(again) == {"ok"}
    assert again.counts["retries"] > 0


def test_what_a_replica_sends_back_is_placed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a request that bounces is forgotten, or counts as placed twice."""
    full = iter([True, False, True, True])
    take = SimulatedReplica.take

    def sometimes(replica: SimulatedReplica, errand: Any) -> Refusal | None:
        return Refusal(RefusalKind.QUEUE_FULL) if next(full, False) else take(replica, errand)

    monkeypatch.setattr(SimulatedReplica, "take", sometimes)
    result = run(load(even(6, 0.3)))
    assert statuses(result) == {"ok"}
    assert result.counts["bounces"] == 3
    assert {one.attempts for one in result.outcomes} == {1}


def test_what_has_no_first_token_in_time_is_given_up_and_the_rest_is_not() -> None:
    requests = load(even(30, 0.001, output_tokens=50))
    result = run(requests, first_token_s=1.0, max_num_seqs=4)
    assert statuses(result) == {"ok", "refused"}
    for outcome in result.outcomes:
        if outcome.status == "refused":
            assert outcome.reason.startswith("timeout_error")
            assert outcome.output_tokens == 0
        else:
            assert outcome.first_token_at - outcome.at <= 1.0 + 0.01


def test_what_has_not_ended_in_time_is_computed_no_further() -> None:
    """Fault: a replica goes on with what its client has given up."""
    requests = load(even(4, 0.001, output_tokens=1_000) + even(1, 1.0, begin=3.0))
    result = run(requests, end_s=1.0)
    *long, short = result.outcomes
    # They broke off; a client that was turned away would have nothing of an answer.
    assert {one.status for one in long} == {"failed"}
    assert {one.reason for one in long} == {"timeout_error/deadline_exceeded"}
    assert all(0 < one.output_tokens < 200 for one in long)
    assert short.status == "ok"
    assert result.busy_s < 2 * 1.1 + 1.0


# ---- order ------------------------------------------------------------------------------


def test_the_urgent_go_first_and_without_priorities_the_first_do() -> None:
    requests = load([Arrival(place / 1_000, 10, 30, priority=place % 2) for place in range(40)])
    narrow: dict[str, Any] = {"replicas": 1, "max_num_seqs": 2, "lookahead": 0}
    starts = {
        policy: [
            one.placed_at for one in run(requests, scheduling_policy=policy, **narrow).outcomes
        ]
        for policy in ("fcfs", "priority")
    }
    assert starts["fcfs"] == sorted(starts["fcfs"])
    later = starts["priority"][4:]
    assert max(later[1::2]) < min(later[0::2])


# ---- how many ---------------------------------------------------------------------------

SCALED: dict[str, Any] = {
    "autoscaling": "blocks",
    "min_replicas": 1,
    "max_replicas": 4,
    "start_s": 2.0,
    "scale_up_cooldown_s": 1.0,
    "scale_down_cooldown_s": 5.0,
    "max_num_seqs": 8,
}


def wave() -> Load:
    return load(even(400, 0.02, output_tokens=60) + even(20, 2.0, begin=8.0))


def test_the_fleet_grows_with_the_load_and_shrinks_after_it() -> None:
    result = run(wave(), **SCALED)
    assert statuses(result) == {"ok"}
    serving = [one.serving for one in result.samples]
    assert serving[0] == 1
    assert max(serving) == 4
    assert serving[-1] == 1
    assert all(0 <= one.starting <= 3 for one in result.samples)
    assert result.replica_s < 4 * result.seconds
    # One after the other: what starts is not there at once.
    grown = next(one.at for one in result.samples if one.serving > 1)
    wanted = next(one.at for one in result.samples if one.wanted > 1)
    assert wanted < grown <= wanted + 2.0 + 2.0


def test_what_drains_is_finished_or_moved_and_costs_nobody_a_loss() -> None:
    slow = even(200, 0.02, output_tokens=40) + even(6, 0.5, begin=4.0, output_tokens=1_500)
    result = run(load(slow), num_blocks=600, drain_s=1.0, **SCALED)
    assert statuses(result) == {"ok"}
    assert result.counts["drained"] > 0
    assert (result.counts["resumed"], result.counts["lost_replicas"]) == (0, 0)


def test_the_last_replica_goes_and_the_next_request_brings_one_back() -> None:
    zero = SCALED | {"min_replicas": 0, "scale_to_zero_s": 10.0, "drain_s": 0.0}
    requests = load(even(5, 0.1) + even(5, 0.1, begin=60.0))
    result = run(requests, **zero)
    assert statuses(result) == {"ok"}
    assert min(one.serving for one in result.samples) == 0
    waited = [one.first_token_at - one.at for one in result.outcomes]
    assert waited[0] < 0.5
    assert 2.0 < waited[5] < 6.0
    assert result.replica_s < result.seconds / 2


# ---- the router's time --------------------------------------------------------------------


def test_a_router_that_takes_time_saturates_and_two_of_them_do_not() -> None:
    requests = load(even(600, 0.004, prompt_tokens=2, output_tokens=2))
    fleet: dict[str, Any] = {"replicas": 4, "max_num_seqs": 64}
    waits = {
        routers: run(requests, router_s=0.006, routers=routers, **fleet).outcomes[-1].ttft_s
        for routers in (1, 2)
    }
    free = run(requests, **fleet).outcomes[-1].ttft_s
    assert None not in (free, *waits.values())
    assert waits[1] > 5 * waits[2]
    assert waits[2] > free


def test_each_tenant_has_its_router_and_each_router_its_replicas() -> None:
    requests = load([Arrival(i / 50, 10, 10, tenant="abc"[i % 3]) for i in range(60)])
    result = run(requests, routers=2, replicas=4, shard_by="tenant")
    served: dict[str, set[int]] = {}
    for outcome in result.outcomes:
        served.setdefault(outcome.tenant, set()).add(int(outcome.replica[1:]) % 2)
    assert all(len(routers) == 1 for routers in served.values())


# ---- bounds -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start_s": -1.0}, "start_s must be a number of seconds from 0, not -1.0"),
        ({"sample_s": 0.0}, "sample_s must be a number of seconds above 0, not 0.0"),
        ({"routers": 3}, "routers must be at most replicas, 2, not 3"),
        ({"routers": 2, "key_file": "keys"}, "routers must be 1 with a key file, not 2"),
        ({"num_blocks": None}, "num_blocks must be given"),
        ({"swap_gib": 1.0}, "kv_bytes_per_token must be a number of bytes from 1"),
        ({"shard_by": "name"}, "shard_by must be hash or tenant, not 'name'"),
        ({"mtbf_kind": "fire"}, "mtbf_kind must be crash or silence, not 'fire'"),
    ],
)
def test_a_value_out_of_range_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scenario(**given)


def test_a_failure_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match="at must be a number of seconds from 0, not -1"):
        Failure(-1)


def test_a_load_without_requests_is_a_run_without_outcomes() -> None:
    empty = simulate(scenario(), Load("none", []), Linear())
    assert (empty.outcomes, empty.seconds) == ([], 0.0)


def test_progress_is_told_and_never_goes_back() -> None:
    seen: list[float] = []
    simulate(scenario(), poisson(5, 5), Linear(), seen.append)
    assert len(seen) >= 5
    assert all(a < b for a, b in pairwise(seen))

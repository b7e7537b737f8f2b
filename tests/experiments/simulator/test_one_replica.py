"""One replica without a network, beside a plain loop over the scheduler and a clock."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engine_config import engine_config
from engine.scheduler import Finished, Request, Scheduler, StepOutput, Token
from engine.step_times import StepTimes
from engine.swap import SwapCost, SwapSpace
from experiments.loads.load import Arrival, Load
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate
from tests.experiments.simulator.runs import Linear, load, scenario

ODD = Linear(step_s=0.010007, prefill_s=0.000103, decode_s=0.001009, block_s=6e-5)
"""No two sums of these fall on one moment with an arrival."""

arrivals = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 300).map(lambda ms: ms / 1_000 + 0.00041),
        prompt_tokens=st.integers(1, 60),
        output_tokens=st.integers(1, 25),
        priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=14,
)
limits = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(24, 60),
        "block_size": st.just(4),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(3, 64),
        "prefill_chunk": st.integers(1, 64),
        "prefix_cache": st.booleans(),
        "target_tpot_ms": st.sampled_from([None, 15.0]),
        "admission_preemption": st.integers(0, 1),
        "max_passes": st.integers(0, 2),
        "swap_gib": st.sampled_from([0.0, 2e-6]),
    }
)


@dataclass
class Seen:
    """What a plain loop sees of one request: the moment of each token."""

    at: list[float]


def by_hand(fleet: Scenario, requests: Load, cost: Linear) -> list[Seen]:
    """Step by step, with a note of each token: one thing after the other, no events."""
    engine, times = engine_config(fleet.config), StepTimes()
    swap = None
    if fleet.slots:
        worthwhile = SwapCost(cost.copies(1), engine.block_tokens, times)
        swap = SwapSpace(fleet.slots, engine.block_tokens, worthwhile)
    scheduler = Scheduler(
        engine.scheduler(fleet.max_model_len),
        engine.blocks(fleet.blocks),
        engine.prefill_policy(times),
        None,
        swap,
    )
    seen = [Seen([]) for _ in requests.arrivals]
    index_of: dict[int, int] = {}
    coming = list(enumerate(requests.arrivals))
    now = moved = 0.0
    while coming or scheduler.has_unfinished():
        waits = not scheduler.has_unfinished() and coming[0][1].at > now
        if waits:  # and then does not keep the first to come waiting for others
            now = moved = coming[0][1].at
        while coming and coming[0][1].at <= now:
            index, one = coming.pop(0)
            prompt = [1_000_000 * (index + 1) + place for place in range(one.prompt_tokens)]
            arrival = round(1_000 * one.at)
            request = Request(prompt, one.output_tokens, one.priority, arrival)
            index_of[scheduler.add(request)] = index
            if waits:
                break
        plan = scheduler.schedule()
        if not (plan.prefill or plan.decode):
            continue
        spans = [range(chunk.start, chunk.start + chunk.len) for chunk in plan.prefill]
        long = [span for span in spans if len(span) > 1]
        # A single token of a prompt attends to all before it and to itself, as a decode does.
        single = [span.stop for span in spans if len(span) == 1]
        pairs = sum(place + 1 for span in long for place in span)
        context = sum(len(scheduler.tokens(id)) for id in plan.decode) + sum(single)
        prefill = sum(len(span) for span in long)
        took = cost.seconds(prefill, pairs, len(plan.decode) + len(single), context)
        copies = scheduler.take_copies()
        took += cost.copies(sum(len(copy.blocks) for copy in copies)) if copies else 0.0
        now += took
        if not copies:
            times.observe(*plan.work, now - moved)
        moved = now
        rows = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        for event in scheduler.on_step([StepOutput(id, 0) for id in rows]):
            if isinstance(event, Token):
                seen[index_of[event.id]].at.append(now)
            else:
                assert isinstance(event, Finished)
    return seen


def alone(**given: Any) -> Scenario:
    """One replica to which everything comes at once and of which all is known at once."""
    instant = {"network_s": 0.0, "gateway_s": 0.0, "report_interval_s": 1e-9}
    return scenario(
        replicas=1, lookahead=100, max_waiting=100, kv_bytes_per_token=64, **instant, **given
    )


@settings(max_examples=50, deadline=None)
@given(arrivals, limits)
def test_each_token_comes_when_a_plain_loop_says(
    some: list[Arrival], given_limits: dict[str, Any]
) -> None:
    """Fault: a simulator that adds up steps in bulk counts one too few, or another's."""
    compare(load(some), alone(**given_limits))


def test_what_a_replica_learns_of_its_steps_is_what_the_engine_does() -> None:
    """Fault: what copies took is learned as the price of tokens."""
    lengths = [(7 * place % 50 + 1, 5 * place % 40 + 5) for place in range(60)]
    crowd = load([Arrival(0.0201 * place, *both, place % 3) for place, both in enumerate(lengths)])
    limits: dict[str, Any] = {"block_size": 4, "num_blocks": 40, "max_num_seqs": 12}
    fleet = alone(target_tpot_ms=18.0, swap_gib=1e-5, **limits)
    assert compare(crowd, fleet).counts["restored_tokens"] > 0


def compare(requests: Load, fleet: Scenario) -> Run:
    """Run both, and see that they agree."""
    run = simulate(fleet, requests, ODD)
    for outcome, seen in zip(run.outcomes, by_hand(fleet, requests, ODD), strict=True):
        assert outcome.status == "ok"
        assert outcome.output_tokens == len(seen.at)
        close(outcome.first_token_at, seen.at[0])
        close(outcome.last_token_at, seen.at[-1])
        gaps = [later - at for at, later in zip(seen.at, seen.at[1:], strict=False)]
        close(outcome.longest_gap_s, max(gaps, default=0.0))
    return run


def close(one: float | None, other: float) -> None:
    assert one is not None
    assert abs(one - other) < 1e-6

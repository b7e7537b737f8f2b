"""Schedulers: the engine's own, wired as `engine.build` wires it, with no model behind it."""

from engine.engine_config import EngineConfig
from engine.scheduler import Scheduler
from engine.step_times import StepTimes
from engine.swap import SwapCost, SwapSpace
from experiments.simulator.scenario import Scenario
from experiments.simulator.step_time import StepTime
from experiments.simulator.timeline import Timeline


def scheduler_of(
    scenario: Scenario,
    engine: EngineConfig,
    step_time: StepTime,
    times: StepTimes,
    timeline: Timeline,
) -> Scheduler:
    """Return the scheduler of one replica.

    Args:
        scenario: says how much memory a replica has.
        engine: the limits.
        step_time: how long copies take.
        times: what steps cost, as far as the replica has learned it.
        timeline: the time; the scheduler's clock ticks in milliseconds.
    """
    swap: SwapSpace | None = None
    if scenario.slots:
        cost = SwapCost(step_time.copies(1), engine.block_tokens, times)
        swap = SwapSpace(scenario.slots, engine.block_tokens, cost)
    return Scheduler(
        engine.scheduler(scenario.max_model_len),
        engine.blocks(scenario.blocks),
        engine.prefill_policy(times),
        lambda: round(1_000 * timeline.now),
        swap,
    )

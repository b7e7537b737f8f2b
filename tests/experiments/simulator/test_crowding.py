"""Replicas of one machine take from each other what carries their tokens."""

import pytest

from deployments.config import ServeConfig
from experiments.loads.load import Arrival, Load
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate


class Steps:
    """10 ms each."""

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        return 0.010

    def copies(self, blocks: int) -> float:
        return 0.0


def run(load: Load, crowding: float, replicas: int = 2) -> Run:
    config = ServeConfig(replicas=replicas, num_blocks=64, prefix_cache=False)
    return simulate(Scenario("a", config, crowding=crowding), load, Steps())


def tpots(run: Run) -> list[float]:
    return [one.tpot_s for one in run.outcomes if one.tpot_s is not None]


def test_steps_take_longer_while_all_others_compute() -> None:
    # Each on a replica of its own. The first half of the long answer is beside the short one.
    both = Load("both", [Arrival(0.0, 4, 41), Arrival(0.0, 4, 21)])
    long, short = tpots(run(both, 1.5))
    assert short == pytest.approx(0.015, rel=0.03)
    assert long == pytest.approx((20 * 0.015 + 20 * 0.010) / 40, rel=0.03)
    assert tpots(run(both, 1.0)) == pytest.approx([0.010, 0.010])


def test_who_computes_alone_is_not_slowed() -> None:
    # Guards against: counting the replica that asks, or a share of those that are idle as one.
    alone = Load("alone", [Arrival(0.0, 4, 21)])
    assert tpots(run(alone, 1.5)) == pytest.approx([0.010])
    assert tpots(run(alone, 1.5, replicas=1)) == pytest.approx([0.010])


def test_some_of_the_others_count_in_proportion() -> None:
    two = Load("two", [Arrival(0.0, 4, 21), Arrival(0.0, 4, 21)])
    assert tpots(run(two, 1.5, replicas=3)) == pytest.approx([0.0125, 0.0125], rel=0.03)


@pytest.mark.parametrize("crowding", [0.9, float("inf"), float("nan")])
def test_a_crowd_makes_nothing_faster(crowding: float) -> None:
    with pytest.raises(ValueError, match="crowding must be a number from 1"):
        Scenario("a", ServeConfig(num_blocks=64), crowding=crowding)

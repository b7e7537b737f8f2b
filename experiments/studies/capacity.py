"""Capacity: how many requests of a load one replica answers in a second, at most."""

from deployments.config import ServeConfig
from experiments.loads.load import Load
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate
from experiments.simulator.step_time import StepTime
from experiments.studies.pieces import sample

_BEGIN, _END = 0.2, 0.8


def capacity(config: ServeConfig, load: Load, step_time: StepTime, requests: int = 600) -> float:
    """Return the requests/s of one replica that always has work, without a prefix cache.

    Requests from all over the load come at once to one replica, and the rate at which they end is
    taken over the middle of the run, where neither the beginning nor the end counts.

    Args:
        config: of the fleet, of which a replica is looked at.
        load: whose requests.
        step_time: of the replica.
        requests: so many are looked at, or all if there are fewer; >= 10.
    """
    alone = {
        "replicas": 1,
        "autoscaling": "off",
        "placement": "most_free_blocks",
        "prefix_cache": False,
        "max_queued": requests,
        "target_tpot_ms": None,
    }
    some = sample(load, requests)
    run = simulate(Scenario("capacity", config.model_copy(update=alone)), some, step_time)
    ends = sorted(o.last_token_at for o in run.outcomes if o.last_token_at is not None)
    first, last = int(_BEGIN * len(ends)), int(_END * len(ends))
    return (last - first) / (ends[last] - ends[first])

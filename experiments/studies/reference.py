"""The fleet that studies look at: replicas of one GPU each, with an estimate of their times."""

from typing import Any, Final

from deployments.config import ServeConfig
from experiments.simulator.step_models import load_step_time
from experiments.simulator.step_time import StepTime

STEP_TIME: Final = "llama-8b@l40s"
"""Llama 3.1 8B in 16 bits on an L40S of 48 GB: an estimate from data sheets, not measured. A
faster GPU serves more requests with as many steps, which only takes longer to simulate."""

BLOCKS: Final = 12_000
"""Of 16 tokens, 2 MiB each: 24 GiB, beside 15 GiB of weights."""

KV_BYTES: Final = 131_072
"""Of one token's keys and values."""


def step_time() -> StepTime:
    """Return how long a replica's steps take."""
    return load_step_time(STEP_TIME)


def config(replicas: int, **settings: Any) -> ServeConfig:
    """Return the settings of the fleet.

    Args:
        replicas: in it.
        settings: of the server, that are not as they are by default or as above. The router
            refuses nothing by default, so that all variants answer the same requests.

    Raises:
        ConfigError: a setting is out of its range.
    """
    usual = {
        "replicas": replicas,
        "num_blocks": BLOCKS,
        "max_num_seqs": 128,
        "max_queued": 1_000_000,
        "prefix_cache": False,
    }
    return ServeConfig.of(usual | settings, {})

"""What the tests of the simulator share: small loads, small fleets, and steps that cost little."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from deployments.config import ServeConfig
from experiments.loads.load import Arrival, Load
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate


@dataclass(frozen=True)
class Linear:
    """A step takes a while, and more for each thing in it."""

    step_s: float = 0.01
    prefill_s: float = 1e-4
    decode_s: float = 1e-3
    block_s: float = 1e-5

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        tokens = self.prefill_s * prefill + self.decode_s * decodes
        return self.step_s + tokens + 1e-7 * (pairs + context)

    def copies(self, blocks: int) -> float:
        return self.block_s * blocks


def scenario(name: str = "run", *, seed: int = 0, **settings: Any) -> Scenario:
    """Fields of a scenario and settings of a server, by their names."""
    known = Scenario.__dataclass_fields__
    own = {key: settings.pop(key) for key in list(settings) if key in known}
    config = ServeConfig.of({"num_blocks": 200, "replicas": 2, "prefix_cache": False} | settings)
    return Scenario(name, config, seed=seed, **own)


def load(arrivals: Iterable[Arrival], piece_tokens: int = 16) -> Load:
    return Load("a load", sorted(arrivals, key=lambda one: one.at), piece_tokens)


def poisson(rate: float, seconds: float, seed: int = 0, **given: Any) -> Load:
    """Requests of random lengths at random times."""
    rng, at, arrivals = Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        lengths = {"prompt_tokens": rng.randint(1, 300), "output_tokens": rng.randint(1, 60)}
        arrivals.append(Arrival(at, **(lengths | given)))
    return load(arrivals)


def run(load: Load, step_time: Linear = Linear(), **settings: Any) -> Run:
    return simulate(scenario(**settings), load, step_time)

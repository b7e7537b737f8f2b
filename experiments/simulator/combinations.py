"""Combinations: the runs that one command line asks for."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any, Final

from deployments.config import ServeConfig
from deployments.keys import with_access
from deployments.policy_source import with_policies
from experiments.arguments import CombinationError
from experiments.loads.load import Load
from experiments.policies import spec_of
from experiments.simulator.allowed import check_allowed
from experiments.simulator.options import SETTINGS, SURROUNDINGS, Count
from experiments.simulator.outcome import Run
from experiments.simulator.roofline import Roofline
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate
from experiments.simulator.step_models import load_described
from experiments.simulator.step_time import StepTime

_POLICY: Final = "blocks"
_NO_POLICY: Final = ("none", "off")

# "Strict": no wait that there can be makes up for a level of priority.
_SCHEDULINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fcfs": {"scheduling_policy": "fcfs"},
    "strict": {"scheduling_policy": "priority", "aging_seconds": 1_000_000.0},
    "priority": {"scheduling_policy": "priority"},
}


@dataclass(frozen=True, slots=True)
class Simulations:
    """What is simulated, all of it with one model of a step's time.

    Attributes:
        scenarios: each with a name of its own.
        step_time: of them all.
        what: says in one line what that is.
    """

    scenarios: list[Scenario]
    step_time: StepTime
    what: str

    def check(self, load: Load) -> None:
        """See that the fleets would let a load in.

        Raises:
            ValueError: see `check_allowed`.
        """
        for scenario in self.scenarios:
            check_allowed(scenario.config, load)

    def run(
        self, scenario: Scenario, load: Load, progress: Callable[[float], None] | None = None
    ) -> Run:
        """Simulate one of the scenarios; see `simulate`."""
        run = simulate(scenario, load, self.step_time, progress)
        return replace(run, settings={**run.settings, "step_time": self.what})


@dataclass(frozen=True, slots=True)
class _Choice:
    """One value of one of the things that are compared.

    Attributes:
        label: what a run's name says of it.
        settings: that it stands for.
    """

    label: str
    settings: Mapping[str, Any]


def simulations_of(options: argparse.Namespace) -> Simulations:
    """Return what is to be simulated: every combination of replicas, routers and schedulings.

    Args:
        options: as `add_fleet_options` makes them, with ``seed``; with those of clients or without.

    Raises:
        CombinationError: two options do not go together.
        ConfigError: a setting or a policy is wrong.
        StepTimeError: there is no such model of a step's time.
        ValueError: a scenario's field is out of its limits.
    """
    described = load_described(options.step_time)
    time, settings = described.time, {name: getattr(options, name) for name in SETTINGS}
    given = {name: getattr(options, name, None) for name in SURROUNDINGS}
    surroundings = {name: value for name, value in given.items() if value is not None}
    surroundings["failures"] = tuple(surroundings.get("failures", ()))
    if isinstance(time, Roofline):
        time = replace(time, block_tokens=ServeConfig.of(settings).block_size)
        surroundings.setdefault("kv_bytes_per_token", time.shape.kv_bytes)
        if settings["num_blocks"] is None:
            settings["num_blocks"] = _blocks(time, described.what)
    elif settings["num_blocks"] is None:
        raise CombinationError(f"--num-blocks must be given, since {options.step_time} has none")
    scenarios = [
        Scenario(name, _config({**settings, **more}), **surroundings)
        for name, more in _combinations(options)
    ]
    _check_failures(scenarios)
    return Simulations(scenarios, time, described.what)


def _check_failures(scenarios: list[Scenario]) -> None:
    """See that each failure is of a replica that there can be in one of the runs at least."""
    most = max(
        config.replicas if config.autoscaling == "off" else config.max_replicas
        for config in (scenario.config for scenario in scenarios)
    )
    for failure in scenarios[0].failures:
        if failure.replica >= most:
            raise CombinationError(
                f"--fail must be of a replica from 0 to {most - 1}, since --replicas gives at "
                f"most {most}, not {failure.replica}"
            )


def _blocks(time: Roofline, what: str) -> int:
    if not time.blocks:
        raise CombinationError(f"--step-time must be of GPUs that hold the model: {what}")
    return time.blocks


def _config(settings: Mapping[str, Any]) -> ServeConfig:
    return with_policies(with_access(ServeConfig.of(settings)))


def _combinations(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the settings of each run; a name says only what there are several of."""
    dimensions = [_replicas(options), _routers(options), _schedulings(options)]
    for choices in product(*dimensions):
        labels = [
            choice.label
            for choice, dimension in zip(choices, dimensions, strict=True)
            if len(dimension) > 1
        ]
        settings = {name: value for choice in choices for name, value in choice.settings.items()}
        yield ", ".join(labels or [choices[0].label]), settings


def _replicas(options: argparse.Namespace) -> list[_Choice]:
    """Return the fleets: of a fixed size, or as each policy has it between bounds."""
    counts: list[Count] = list(dict.fromkeys(chain.from_iterable(options.replicas)))
    policies = _without_repeats(options.policy or [_POLICY])
    bounded = [count for count in counts if not count.fixed]
    if options.policy and not bounded and not set(policies) <= set(_NO_POLICY):
        raise CombinationError(
            f"--policy {policies[0]} needs bounds such as --replicas 4..64, "
            f"not {','.join(map(str, counts))}"
        )
    if bounded and (none := [policy for policy in policies if policy in _NO_POLICY]):
        raise CombinationError(
            f"--policy {none[0]} needs a number such as --replicas 8, not {bounded[0]}; "
            "--replicas 8,4..64 does both"
        )
    choices = []
    for count in counts:
        if count.fixed:
            label = f"{count} replica" if count.low == 1 else f"{count} replicas"
            choices.append(_Choice(label, {"replicas": count.low}))
        else:
            bounds = {"min_replicas": count.low, "max_replicas": count.high}
            choices += [
                _Choice(f"{count} by {label}", {"autoscaling": policy, **bounds})
                for policy, label in _labels(policies)
            ]
    return choices


def _routers(options: argparse.Namespace) -> list[_Choice]:
    return [
        _Choice(label, {"placement": spec_of(name)})
        for name, label in _labels(_without_repeats(options.router))
    ]


def _schedulings(options: argparse.Namespace) -> list[_Choice]:
    names = _without_repeats(options.scheduling)
    if "priority" not in names and options.aging_seconds is not None:
        raise CombinationError("--aging-seconds needs --scheduling priority: nothing else ages")
    return [_Choice(name, _SCHEDULINGS[name]) for name in names]


def _labels(names: list[str]) -> list[tuple[str, str]]:
    """Return each name, and how a run's name has it: without a file's folders, if that will do."""
    short = [name.rpartition("/")[2] for name in names]
    unique = len(set(short)) == len(short)
    return list(zip(names, short if unique else names, strict=True))


def _without_repeats(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))

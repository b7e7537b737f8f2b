"""Sends pieces of a trace to a server of this machine, simulates the same, and compares.

The server and the simulation get the same settings. What the simulation knows of the machine is
measured first, and is the same for all pieces: what a step costs, in engines that run side by
side, in CPU time if an engine has one thread; what a lone request takes beyond its step; and how
much longer steps take while all replicas compute, since others need the machine's cores too.
"""

import argparse
import asyncio
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from deployments.config import ConfigError, ServeConfig
from deployments.engine_config import engine_config
from engine.model_info import ModelError
from engine.request import InvalidParam
from experiments.bench.served import PARTS, Served, engine_threads, serve, used_by_parts
from experiments.loads.load import Load
from experiments.replay.manner import Manner
from experiments.replay.replaying import replay
from experiments.replay.target import base_url
from experiments.report.compare import Comparison, compare
from experiments.report.needs import Format, MissingLibrary, require
from experiments.report.report import Report
from experiments.report.targets import Targets
from experiments.report.write import write_report
from experiments.simulator.fit import model_of, one_thread
from experiments.simulator.measured_engines import measure_engines
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate
from experiments.simulator.step_models import fitted_json, load_step_time
from experiments.simulator.step_time import StepTime
from experiments.validation.judge import judge, table
from experiments.validation.options import flags_of, parser, pieces_of, settings_of
from experiments.validation.overhead import bursts, crowding, gateway_s, lone_requests

FORMATS: Final[tuple[Format, ...]] = ("csv", "png", "html")


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured of a machine before any load.

    Attributes:
        step_time: what a step costs there.
        gateway_s: what a request takes beyond messages and steps.
        crowding: how much longer steps take while all replicas compute.
    """

    step_time: StepTime
    gateway_s: float
    crowding: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, simulate, compare and report; returns 0 if all figures are within their limits."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(arguments)
    settings = settings_of(options)
    try:
        require(FORMATS)
        config = ServeConfig.of(settings)
        pieces = pieces_of(options)
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        with serve(config.model, *flags_of(settings)) as server:
            machine = _machine(server, config, options, folder)
            measured = [
                _measured(server, f"measured, rate x {rate:g}", load) for rate, load in pieces
            ]
    except (ConfigError, ModelError, InvalidParam, MissingLibrary, ValueError, RuntimeError) as e:
        print(f"validation: {e}", file=sys.stderr)
        return 1
    simulated = [
        _simulated(f"simulated, rate x {rate:g}", load, config, machine) for rate, load in pieces
    ]
    comparisons = [compare(one, other) for one, other in zip(simulated, measured, strict=True)]
    verdicts = [
        verdict
        for (rate, _), comparison in zip(pieces, comparisons, strict=True)
        for verdict in judge(f"rate x {rate:g}", comparison)
    ]
    command = shlex.join(["python", "-m", "experiments.validation", *arguments])
    _report([*simulated, *measured], comparisons, folder, command)
    table(verdicts).show(Console())
    return 0 if all(verdict.fine for verdict in verdicts) else 1


def _machine(
    server: Served, config: ServeConfig, options: argparse.Namespace, folder: Path
) -> Machine:
    if options.step_time is not None:
        step_time = load_step_time(options.step_time)
    else:
        _say(f"Measuring steps for {options.fit_seconds:g} s, the server being idle.")
        made = measure_engines(
            engine_config(config),
            config.replicas,
            options.fit_seconds,
            options.seed,
            time.thread_time if one_thread(config) else time.perf_counter,
        )
        step_time, about = model_of(made, config, options.seed)
        (folder / "step-time.json").write_text(fitted_json(step_time, about), encoding="utf-8")
        _say(f"Off by {about['median_error']:.1%} of held-out steps' times, the median.")
    alone = _replayed(server, "alone", lone_requests())
    machine = Machine(step_time, 0.0, 1.0)
    spent_s = gateway_s(alone.outcomes, step_time, _scenario("", config, machine).network_s)
    machine = replace(machine, gateway_s=spent_s)
    load = bursts(config.replicas)
    ideal = _simulated("", load, config, machine)
    slower = crowding(_replayed(server, "bursts", load).outcomes, ideal.outcomes)
    _say(f"A lone request takes {1e3 * spent_s:.1f} ms beyond its step and its messages.")
    _say(f"While all replicas compute, steps take {slower:.3f} times as long.")
    return replace(machine, crowding=slower)


def _measured(server: Served, name: str, load: Load) -> Run:
    _say(f"{name}: {len(load.arrivals)} requests in {load.seconds:.0f} s.")
    before, all_before = server.used(), _computed_s()
    run = _replayed(server, name, load)
    after, all_after = server.used(), _computed_s()
    engines = engine_threads(before, after)
    beside = sum(used_by_parts(before, after, engines).values()) / 1e9
    own = sum(used_by_parts(before, after, frozenset()).values()) / 1e9 - beside
    _say(
        f"In {run.seconds:.1f} s engines computed for {own:.1f} s, {', '.join(PARTS)} beside them "
        f"for {beside:.1f} s, all else for {all_after - all_before - own - beside:.1f} s."
    )
    return run


def _computed_s() -> float:
    """CPU seconds that all of the machine has computed."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def _replayed(server: Served, name: str, load: Load) -> Run:
    url = base_url(server.url)
    return asyncio.run(replay(load, url, Manner(), name=name)).run


def _simulated(name: str, load: Load, config: ServeConfig, machine: Machine) -> Run:
    return simulate(_scenario(name, config, machine), load, machine.step_time)


def _scenario(name: str, config: ServeConfig, machine: Machine) -> Scenario:
    return Scenario(name, config, gateway_s=machine.gateway_s, crowding=machine.crowding)


def _report(
    runs: Sequence[Run], comparisons: Sequence[Comparison], folder: Path, command: str
) -> None:
    targets = Targets(None, None)
    write_report(
        runs, folder, targets=targets, formats=FORMATS, comparisons=comparisons, command=command
    )
    Report.of(runs, targets, comparisons, command).show(Console())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

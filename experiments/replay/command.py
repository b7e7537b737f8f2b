"""Command line of ``tidegate replay``."""

import argparse
import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console

from deployments.flags import Parser
from experiments.arguments import CombinationError
from experiments.commands import INTERRUPTED, Command
from experiments.loads.errors import LoadError
from experiments.loads.load import Load
from experiments.loads.options import add_load_options, add_save_options, keep, load_of, save_of
from experiments.replay.against import runs_of_same_load
from experiments.replay.measured import Measured
from experiments.replay.options import add_server_options, manner_of
from experiments.replay.progress import Bar
from experiments.replay.replaying import replay
from experiments.replay.target import base_url
from experiments.replay.verdict import verdict
from experiments.report.compare import compare
from experiments.report.options import add_report_options, reporting_of
from experiments.simulator.combinations import simulations_of
from experiments.simulator.command import simulated
from experiments.simulator.options import add_client_options, add_fleet_options

_COMMAND: Final = Command("tidegate replay")


def main(argv: Sequence[str]) -> int:
    """Send a load and report what came of it.

    Args:
        argv: the command line without the program's name and ``replay``.

    Returns:
        The exit code: 0 if the whole load was sent and something was answered, 2 if the options
        do not go together, 130 after Ctrl-C, else 1.
    """
    options = _parser().parse_args(argv)
    command = f"{_COMMAND.name} {shlex.join(_public(argv))}"
    return _COMMAND.run(lambda: _main(options, command), "interrupted, without a report")


def _main(options: argparse.Namespace, command: str) -> int:
    reporting, save = reporting_of(options), save_of(options)
    simulations = simulations_of(options) if _simulates(options) else None
    load = load_of(options, _COMMAND.say)
    if not load.arrivals:
        raise LoadError(f"{load.name} has no request")
    keep(load, save, _COMMAND.say)
    others = [] if options.against is None else runs_of_same_load(options.against, load)
    scenarios = [] if simulations is None else simulations.scenarios
    # What is measured cannot be had again: nothing may stand in the way of its report.
    names = [*(run.name for run in others), *(one.name for one in scenarios), options.name]
    if simulations is not None:
        simulations.check(load)
    reporting.prepare(names)
    measured = _replayed(options, load)
    for line in verdict(load, measured):
        _COMMAND.say(line)
    compared = [run for run in others if run.kind == "simulated"]
    complete = measured.sent == len(load.arrivals)
    if compared and not complete:
        _COMMAND.say(f"the runs of {options.against} are of the whole load: they are not compared")
        compared = []
    if simulations is not None:
        sent = replace(load, arrivals=load.arrivals[: measured.sent])
        made = simulated(simulations, sent)
        others, compared = others + made, compared + made
    runs = [*others, measured.run]
    comparisons = [compare(run, measured.run) for run in compared]
    files = reporting.report(runs, comparisons, command, Console())
    for file in files:
        _COMMAND.say(f"wrote {file}")
    if not complete:
        return INTERRUPTED
    return 0 if measured.tally.ended["ok"] else 1


def _replayed(options: argparse.Namespace, load: Load) -> Measured:
    url, manner = base_url(options.url), manner_of(options, load)
    bar = Bar(load.seconds, len(load.arrivals), Console(stderr=True))
    with bar, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(replay(load, url, manner, bar, options.name, _COMMAND.say))


def _simulates(options: argparse.Namespace) -> bool:
    """Return whether there is a simulation to be made.

    Raises:
        CombinationError: there is none, but something is said of it.
    """
    if options.simulate:
        return True
    parser = Parser(add_help=False)
    add_fleet_options(parser)
    for action in parser._actions:
        if getattr(options, action.dest) != action.default:
            raise CombinationError(f"{action.option_strings[0]} is of use with --simulate only")
    return False


def _public(argv: Sequence[str]) -> list[str]:
    """Return the command line as a report may show it: without the key."""
    shown: list[str] = []
    for word in argv:
        hidden = bool(shown) and shown[-1] == "--api-key"
        key, is_key, _ = word.partition("--api-key=")
        shown.append("KEY" if hidden else f"{key}{is_key}KEY" if is_key else word)
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_COMMAND.name,
        allow_abbrev=False,  # `_public` has to know the key's option
        description="Send a load to a live server in real time, each request at its time whatever "
        "became of those before, and report what came of it. The first Ctrl-C sends no more and "
        "waits for the answers under way, the second gives them up; both write the report.",
    )
    add_load_options(parser)
    add_save_options(parser)
    add_server_options(parser)
    add_client_options(parser)
    add_report_options(parser)
    add_fleet_options(parser)
    parser.add_argument("--name", default="measured", help="of the run, as the report calls it")
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="simulate what was sent as well, as tidegate simulate does, side by side",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="an earlier report of the same load, such as simulate's: its runs side by side",
    )
    return parser

"""Command line of ``tidegate replay``."""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console

from deployments.flags import Parser
from experiments.arguments import CombinationError
from experiments.loads.errors import LoadError
from experiments.loads.load import Load
from experiments.loads.options import add_load_options, add_save_options, load_of, save_of
from experiments.loads.summary import summary
from experiments.loads.traces import write_trace
from experiments.replay.against import runs_of_same_load
from experiments.replay.measured import Measured
from experiments.replay.options import add_server_options, manner_of
from experiments.replay.progress import Bar
from experiments.replay.replaying import replay
from experiments.replay.target import base_url
from experiments.replay.verdict import verdict
from experiments.report.compare import compare
from experiments.report.needs import MissingLibrary
from experiments.report.options import add_report_options, reporting_of
from experiments.simulator.combinations import simulations_of
from experiments.simulator.command import simulated
from experiments.simulator.options import add_client_options, add_fleet_options

_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Send a load and report what came of it.

    Args:
        argv: the command line without the program's name and ``replay``.

    Returns:
        The exit code: 0 if the whole load was sent and something was answered, 2 if the options
        do not go together, 130 after Ctrl-C, else 1.
    """
    options = _parser().parse_args(argv)
    try:
        return _main(options, f"tidegate replay {shlex.join(_public(argv))}")
    except CombinationError as error:
        _say(str(error))
        return 2
    except (ValueError, MissingLibrary) as error:  # of all of them, one line each
        _say(str(error))
    except OSError as error:
        _say(f"{error.filename or 'a file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        _say("interrupted, without a report")
        return _INTERRUPTED
    return 1


def _main(options: argparse.Namespace, command: str) -> int:
    reporting, save = reporting_of(options), save_of(options)
    simulations = simulations_of(options) if _simulates(options) else None
    load = load_of(options, _say)
    if not load.arrivals:
        raise LoadError(f"{load.name} has no request")
    _say(summary(load))
    if save is not None:
        write_trace(load, *save)
        _say(f"wrote {save[0]}")
    others = [] if options.against is None else runs_of_same_load(options.against, load)
    scenarios = [] if simulations is None else simulations.scenarios
    # What is measured cannot be had again: nothing may stand in the way of its report.
    names = [*(run.name for run in others), *(one.name for one in scenarios), options.name]
    if simulations is not None:
        simulations.check(load)
    reporting.prepare(names)
    measured = _replayed(options, load)
    for line in verdict(load, measured):
        _say(line)
    compared = [run for run in others if run.kind == "simulated"]
    complete = measured.sent == len(load.arrivals)
    if compared and not complete:
        _say(f"the runs of {options.against} are of the whole load: they are not compared")
        compared = []
    if simulations is not None:
        sent = replace(load, arrivals=load.arrivals[: measured.sent])
        made = simulated(simulations, sent)
        others, compared = others + made, compared + made
    runs = [*others, measured.run]
    comparisons = [compare(run, measured.run) for run in compared]
    files = reporting.report(runs, comparisons, command, Console())
    for file in files:
        _say(f"wrote {file}")
    if not complete:
        return _INTERRUPTED
    return 0 if measured.tally.ended["ok"] else 1


def _replayed(options: argparse.Namespace, load: Load) -> Measured:
    url, manner = base_url(options.url), manner_of(options, load)
    bar = Bar(load.seconds, len(load.arrivals), Console(stderr=True))
    with bar, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(replay(load, url, manner, bar, options.name, _say))


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


def _say(text: str) -> None:
    print(f"tidegate replay: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tidegate replay",
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

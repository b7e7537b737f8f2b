"""Command line of ``tidegate simulate``."""

import argparse
import shlex
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from deployments.flags import Parser
from experiments.commands import INTERRUPTED, Command
from experiments.loads.load import Load
from experiments.loads.options import add_load_options, add_save_options, keep, load_of, save_of
from experiments.report.options import add_report_options, reporting_of
from experiments.simulator.combinations import Simulations, simulations_of
from experiments.simulator.options import add_client_options, add_fleet_options
from experiments.simulator.outcome import Run
from experiments.simulator.progress import shown

_COMMAND: Final = Command("tidegate simulate")


def main(argv: Sequence[str]) -> int:
    """Simulate a load on each of the fleets that are asked for, and report what came of it.

    Args:
        argv: the command line without the program's name and ``simulate``.

    Returns:
        The exit code: 0 if all was simulated, 2 if the options do not go together, 130 after
        Ctrl-C, else 1.
    """
    if argv[:1] == ["--fit"]:
        # Only here: it needs torch.
        from experiments.simulator import fit

        return fit.main(argv[1:])
    options = _parser().parse_args(argv)
    command = f"{_COMMAND.name} {shlex.join(argv)}"
    return _COMMAND.run(
        lambda: _main(options, command), "interrupted before anything was simulated"
    )


def _main(options: argparse.Namespace, command: str) -> int:
    # What can be wrong is looked at before anything long is done.
    reporting, save = reporting_of(options), save_of(options)
    simulations = simulations_of(options)
    load = load_of(options, _COMMAND.say)
    simulations.check(load)
    reporting.prepare([scenario.name for scenario in simulations.scenarios])
    keep(load, save, _COMMAND.say)
    runs = simulated(simulations, load)
    if not runs:
        raise KeyboardInterrupt
    missing = len(simulations.scenarios) - len(runs)
    for file in reporting.report(runs, (), command, Console(), missing):
        _COMMAND.say(f"wrote {file}")
    if missing:
        _COMMAND.say(
            f"interrupted: {missing} of {len(simulations.scenarios)} runs are not in the report"
        )
        return INTERRUPTED
    return 0


def simulated(simulations: Simulations, load: Load) -> list[Run]:
    """Return the runs, all of them or those that were done at Ctrl-C; shows how far they are."""
    console, runs = Console(stderr=True), list[Run]()
    try:
        for scenario in simulations.scenarios:
            with shown(scenario.name, load.seconds, console) as progress:
                runs.append(simulations.run(scenario, load, progress))
    except KeyboardInterrupt:
        pass
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_COMMAND.name,
        description="Try a load on replicas that are not there: the real scheduler, router and "
        "autoscaling policies under a clock that is only counted. A table goes to stdout, all "
        "else to stderr. Ctrl-C reports the runs that were done. tidegate simulate --fit measures "
        "how long steps take on this machine (--fit --help says how).",
    )
    add_load_options(parser)
    add_save_options(parser)
    add_fleet_options(parser)
    add_client_options(parser)
    add_report_options(parser)
    return parser

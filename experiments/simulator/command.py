"""Command line of ``tidegate simulate``."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from deployments.config import ConfigError
from deployments.flags import Parser
from experiments.arguments import CombinationError
from experiments.loads.errors import LoadError
from experiments.loads.load import Load
from experiments.loads.options import add_load_options, add_save_options, load_of, save_of
from experiments.loads.summary import summary
from experiments.loads.traces import write_trace
from experiments.report.needs import MissingLibrary
from experiments.report.options import add_report_options, reporting_of
from experiments.simulator.combinations import Simulations, simulations_of
from experiments.simulator.options import add_client_options, add_fleet_options
from experiments.simulator.outcome import Run
from experiments.simulator.progress import shown
from experiments.simulator.step_models import StepTimeError

_INTERRUPTED = 130


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
    try:
        return _main(options, f"tidegate simulate {shlex.join(argv)}")
    except CombinationError as error:
        _say(str(error))
        return 2
    except (LoadError, ConfigError, StepTimeError, MissingLibrary, ValueError) as error:
        _say(str(error))
    except OSError as error:
        _say(f"{error.filename or 'a file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        _say("interrupted before anything was simulated")
        return _INTERRUPTED
    return 1


def _main(options: argparse.Namespace, command: str) -> int:
    # What can be wrong is looked at before anything long is done.
    reporting, save = reporting_of(options), save_of(options)
    simulations = simulations_of(options)
    load = load_of(options, _say)
    simulations.check(load)
    reporting.prepare([scenario.name for scenario in simulations.scenarios])
    _say(summary(load))
    if save is not None:
        write_trace(load, *save)
        _say(f"wrote {save[0]}")
    runs = simulated(simulations, load)
    if not runs:
        raise KeyboardInterrupt
    missing = len(simulations.scenarios) - len(runs)
    for file in reporting.report(runs, (), command, Console(), missing):
        _say(f"wrote {file}")
    if missing:
        _say(f"interrupted: {missing} of {len(simulations.scenarios)} runs are not in the report")
        return _INTERRUPTED
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


def _say(text: str) -> None:
    print(f"tidegate simulate: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tidegate simulate",
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

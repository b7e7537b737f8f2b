"""Options of a command line that say what becomes of its runs."""

import argparse
import errno
import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from experiments.arguments import CombinationError
from experiments.report.compare import Comparison
from experiments.report.needs import Format, require
from experiments.report.report import Report, check_names
from experiments.report.targets import Targets
from experiments.report.write import DEFAULT_FORMATS, write_report
from experiments.simulator.outcome import Run

_FORMATS: tuple[Format, ...] = ("csv", "parquet", "html", "png", "svg")


@dataclass(frozen=True, slots=True)
class Reporting:
    """What is printed and written of runs.

    Attributes:
        folder: for the files; None for none.
        formats: of the files.
        targets: that the runs are judged by.
    """

    folder: Path | None
    formats: tuple[Format, ...]
    targets: Targets

    def prepare(self, names: Sequence[str]) -> None:
        """Make the folder and see that the report can be written; best done before a long run.

        Args:
            names: of the runs that the report will have.

        Raises:
            ValueError: two of them are the same.
            OSError: the folder cannot be made or written to.
        """
        check_names(names)
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))

    def report(
        self,
        runs: Sequence[Run],
        comparisons: Sequence[Comparison],
        command: str,
        console: Console,
        missing: int = 0,
    ) -> list[Path]:
        """Print the overview and write the files; returns these.

        ``missing`` runs were to be there as well, had nobody interrupted.

        Raises:
            ValueError: there is no run, or two have one name.
            OSError: the folder cannot be written to.
        """
        Report.of(runs, self.targets, comparisons, command).show(console)
        if self.folder is None:
            return []
        return write_report(
            runs,
            self.folder,
            targets=self.targets,
            formats=self.formats,
            comparisons=comparisons,
            command=command,
            missing=missing,
        )


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that `reporting_of` reads."""
    group = parser.add_argument_group("report")
    group.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the report there; default: only print it"
    )
    group.add_argument(
        "--formats",
        type=_formats,
        metavar="LIST",
        help=f"of {', '.join(_FORMATS)}, with commas; default {','.join(DEFAULT_FORMATS)}",
    )
    default = Targets()
    group.add_argument(
        "--slo-ttft",
        type=_target,
        default=default.ttft_s,
        metavar="S",
        help=f"time to first token that clients were promised; default {default.ttft_s:g}",
    )
    group.add_argument(
        "--slo-tpot-ms",
        type=_target,
        metavar="MS",
        help="milliseconds per token after it that clients were promised; default: any",
    )


def reporting_of(options: argparse.Namespace) -> Reporting:
    """Return what is to be printed and written.

    Raises:
        MissingLibrary: a format needs what is not installed.
        CombinationError: there are formats and no folder.
    """
    formats = DEFAULT_FORMATS if options.formats is None else options.formats
    if options.out is not None:
        require(formats)
    elif options.formats is not None:
        raise CombinationError(f"--formats {','.join(formats)} needs --out FOLDER")
    tpot_s = None if options.slo_tpot_ms is None else options.slo_tpot_ms / 1000
    return Reporting(options.out, formats, Targets(options.slo_ttft, tpot_s))


def _formats(text: str) -> tuple[Format, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in _FORMATS]:
        known = ", ".join(_FORMATS)
        raise argparse.ArgumentTypeError(f"must be of {known}, with commas, not {wrong[0]!r}")
    return typing.cast(tuple[Format, ...], names)


def _target(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text!r}")
    return value

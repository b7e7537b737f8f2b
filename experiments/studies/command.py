"""``tidegate study NAME``: run a study, print its tables, and write its page and plots."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from deployments.flags import Parser
from experiments.commands import Command
from experiments.loads.errors import LoadError
from experiments.loads.load import Load
from experiments.loads.spec import is_spec, load_named
from experiments.report.drawing import save
from experiments.report.needs import require
from experiments.studies.findings import Findings
from experiments.studies.known import STUDIES
from experiments.studies.page import PageError, page, replaced
from experiments.studies.running import find
from experiments.studies.study import Given, Study

_COMMAND: Final = Command("tidegate study")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code.

    Args:
        argv: the command line without the program's name; the process's own if None.
    """
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    study = STUDIES[options.name]
    return _COMMAND.run(lambda: _main(study, options), "interrupted, without a result")


def _main(study: Study, options: argparse.Namespace) -> int:
    require(["svg"] if options.out else [])
    loads = loads_of(study, options.trace, quick=options.quick)
    given = Given(loads, options.seeds, options.quick)
    findings = find(study, given, lambda line: print(line, file=sys.stderr, flush=True))
    console = Console()
    for table in study.tables(findings).values():
        table.show(console)
    if options.out:
        _write(study, findings, Path(options.out), _command(options))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    lines = [f"{one.name}: {one.title}. {_traces_of(one)}" for one in STUDIES.values()]
    root = Parser(
        prog=_COMMAND.name,
        description="Put a question to the simulator, and show what it answers.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("name", metavar="NAME", choices=list(STUDIES), help=", ".join(STUDIES))
    root.add_argument(
        "--trace",
        nargs="+",
        default=[],
        metavar="FILE|SPEC",
        help="the traces that the study reads, in its order; with --quick there are stand-ins",
    )
    root.add_argument(
        "--out",
        metavar="FOLDER",
        help="write NAME.md and its plots there; of a page that is there, only what a study made",
    )
    root.add_argument(
        "--seeds", type=_seeds, default=3, metavar="N", help="runs of each variant; default 3"
    )
    root.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    return root


def parts(study: Study, findings: Findings, command: str) -> dict[str, str]:
    """Return all that is made of a study's page, by the names of the places."""
    made = {"command": f"```\n{command}\n```"}
    for name, table in study.tables(findings).items():
        made[name] = f"{table.as_markdown()}\n\n{table.note}"
    for plot in study.plots(findings):
        made[plot.name] = f"![{plot.title}. {plot.alt}]({plot.name}.svg)"
    return made


def _write(study: Study, findings: Findings, folder: Path, command: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file, made = folder / f"{study.name}.md", parts(study, findings, command)
    try:
        text = replaced(file.read_text(), made) if file.exists() else page(study.title, made)
    except PageError as error:
        raise PageError(f"{file}: {error}") from None
    file.write_text(text)
    for plot in study.plots(findings):
        save(plot, folder, "svg")


def loads_of(study: Study, given: Sequence[str], *, quick: bool) -> Mapping[str, Load]:
    """Return the load of each of a study's traces.

    Args:
        study: whose.
        given: files or specs, in the order of the traces.
        quick: stand-ins will do, if none is given.

    Raises:
        LoadError: there are too many traces, or too few, or one cannot be had.
    """
    texts = list(given)
    if quick and not texts:
        texts = [trace.stand_in for trace in study.traces]
    if len(texts) != len(study.traces):
        raise LoadError(f"{study.name} reads {len(study.traces)} traces, not {len(texts)}: "
                        f"{_traces_of(study)}")  # fmt: skip
    return {
        trace.name: load_named(text, Random(0))
        for trace, text in zip(study.traces, texts, strict=True)
    }


def _traces_of(study: Study) -> str:
    return "Traces: " + ", then ".join(trace.what for trace in study.traces)


def _command(options: argparse.Namespace) -> str:
    """Return the command that was given, without where on this machine files are.

    A folder that is not given as seen from where the command runs becomes that of the
    documentation.
    """
    words = ["tidegate", "study", options.name]
    if options.trace:
        names = [text if is_spec(text) else Path(text).name for text in options.trace]
        words += ["--trace", *names]
    words += ["--seeds", str(options.seeds)] if options.seeds != 3 else []
    words += ["--quick"] if options.quick else []
    out = "docs/experiments" if Path(options.out).is_absolute() else options.out
    return shlex.join([*words, "--out", out])


def _seeds(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000, not {text!r}")
    return value

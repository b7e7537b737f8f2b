"""Command line: measure this engine and its peers alternately, and write down what was found.

``python -m experiments.peers setup [FOLDER]`` makes the environment that vLLM needs and
prints the Python to pass as ``--vllm``.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from engine.loader import resolve
from experiments.peers import known
from experiments.peers.answering import Settings
from experiments.peers.child import Child, PeerFailed
from experiments.peers.environment import set_up
from experiments.peers.known import LeftOut, Start
from experiments.peers.load import LOADS, QUICK
from experiments.peers.measure import Measure
from experiments.peers.report import as_json, as_markdown
from experiments.peers.result import Run

_NAMES = ("tidegate", "vllm", "transformers")
_START_S = 300.0
_VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_HERE = Path(__file__).parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all the peers that were asked for were measured to the end.

    Args:
        argv: the command line without the program's name; the process's own if None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["setup"]:
        print(set_up(_setup_parser().parse_args(arguments[1:]).folder))
        return 0
    args = parser().parse_args(arguments)
    results = args.write or (None if args.quick else _HERE)
    if results is not None and importlib.util.find_spec("matplotlib") is None:
        # Now, not after ten minutes.
        parser().error("the plot needs matplotlib: pip install 'tidegate[experiments]'")
    with tempfile.TemporaryDirectory() as folder:
        starts, left_out = _starts(args, Path(folder))
        run = _measure(args, starts, left_out, Path(folder))
    print(as_markdown(run, "Tidegate", None))
    if results is not None and run.samples:
        _write(run, results)
    return 1 if run.left_out else 0


def _starts(args: argparse.Namespace, folder: Path) -> tuple[list[Start], dict[str, str]]:
    starts: list[Start] = []
    left_out: dict[str, str] = {}
    for name in args.only:
        match name:
            case "tidegate":
                found: Start | LeftOut = known.tidegate()
            case "vllm":
                found = known.vllm(args.vllm, args.tcmalloc, args.threads, folder)
            case _:
                found = known.transformers()
        if isinstance(found, LeftOut):
            left_out[found.name] = found.reason
            _say(f"left out: {found.name}: {found.reason}")
        else:
            starts.append(found)
    return starts, left_out


def _measure(
    args: argparse.Namespace, starts: list[Start], left_out: dict[str, str], folder: Path
) -> Run:
    settings = Settings(str(resolve(args.model)), args.dtype, args.threads)
    loads, rounds = (QUICK, 1) if args.quick else (LOADS, args.rounds)
    prompts, tokens, steps = (8, 8, 50) if args.quick else (args.prompts, 32, 300)
    with _started(starts, settings, folder, left_out) as (children, versions):
        measure = Measure(children, _say)
        measure.warm_up(loads)
        samples = tuple(measure.rates(loads, rounds))
        schedulers = tuple(measure.schedulers((64, 256), rounds, steps))
        same_bits = tuple(measure.same_bits(prompts, tokens))
    return Run(
        versions=versions,
        notes={start.name: start.notes for start in starts},
        left_out={**left_out, **measure.failed},
        samples=samples,
        same_bits=same_bits,
        schedulers=schedulers,
        idle_share=measure.idle_share,
        facts={
            "measured": f"{date.today():%Y-%m-%d}, {rounds} rounds, in turns",
            "machine": f"{_processor()}, {args.threads} threads, {platform.system()}",
            "model": f"{Path(settings.model).name}, {settings.dtype}",
            "command": f"`python -m experiments.peers {_shown(args)}`",
        },
    )


@contextlib.contextmanager
def _started(
    starts: list[Start], settings: Settings, folder: Path, left_out: dict[str, str]
) -> Iterator[tuple[list[Child], dict[str, dict[str, str]]]]:
    """The children that have loaded, one after the other, and their versions."""
    children: list[Child] = []
    versions: dict[str, dict[str, str]] = {}
    said = json.dumps(asdict(settings))
    try:
        for start in starts:
            _say(f"{start.name}: loading …")
            log = folder / f"{start.name}.log"
            child = Child(start.name, (*start.command, said), start.variables, log)
            children.append(child)
            try:
                versions[start.name] = child.ready(_START_S)
                child.settle()
            except PeerFailed as error:
                left_out[start.name] = error.reason
                _say(f"left out: {error}")
        yield [child for child in children if child.name in versions], versions
    finally:
        for child in children:
            child.close()


def _write(run: Run, folder: Path) -> None:
    # matplotlib is in an extra, and only this needs it.
    from experiments.peers.plot import draw

    folder.mkdir(parents=True, exist_ok=True)
    draw(run, folder / "results.svg")
    (folder / "results.json").write_text(as_json(run))
    (folder / "results.md").write_text(as_markdown(run, "Tidegate", "results.svg"))
    _say(f"written: results.md, results.json and results.svg in {folder}")


def _processor() -> str:
    """The processor's name and what of its vector extensions matters here."""
    about = Path("/proc/cpuinfo").read_text()
    facts = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", about, re.MULTILINE))
    found = [flag for flag in _VECTORS if flag in facts.get("flags", "").split()]
    name = facts.get("model name", platform.machine())
    return f"{name} with {', '.join(found)}" if found else name


def _shown(args: argparse.Namespace) -> str:
    """The options as they would be given again, without where things lie on this machine."""
    shown = ["--vllm", "PYTHON"] if args.vllm else []
    shown += ["--quick"] if args.quick else ["--rounds", str(args.rounds)]
    return shlex.join(shown)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="as for tidegate serve; the demo model if absent")
    parser.add_argument("--dtype", default="bfloat16", help="of weights, K and V")
    parser.add_argument(
        "--only", nargs="+", choices=_NAMES, default=list(_NAMES), help="peers to measure"
    )
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="of vLLM's environment")
    parser.add_argument(
        "--tcmalloc",
        metavar="FILE",
        help="to preload for vLLM, as its documentation asks; where the system keeps it",
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="that each computes with"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each at each load")
    parser.add_argument("--prompts", type=int, default=64, help="for the check of same bits")
    parser.add_argument("--quick", action="store_true", help="a look whether all works")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FOLDER",
        help="for results.md, .json and .svg; beside this code, and nowhere with --quick",
    )
    return parser


def _setup_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.peers setup")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(".peers"), help="for the environment, 3.5 GB"
    )
    return parser

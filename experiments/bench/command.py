"""Command line of the benchmarks."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from experiments.bench import (
    engine_speed,
    gap_speed,
    http_speed,
    machine_speed,
    placement_load,
    prefix_speed,
    router_calls,
    router_speed,
    scheduler_speed,
    swap_speed,
)
from experiments.bench.table import Row, as_markdown

PARTS = (
    "scheduler", "router", "placement", "machine", "engine", "gap", "prefix", "swap", "http",
    "calls",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen parts, print each row when it is there and the table at the end."""
    args = _parser().parse_args(argv)
    rows = []
    for row in _measure(args):
        print(f"{row.what}: {row.value:,.4g} {row.unit}", file=sys.stderr, flush=True)
        rows.append(row)
    print(as_markdown(rows))
    return 0


def _measure(args: argparse.Namespace) -> Iterator[Row]:
    if "scheduler" in args.only:
        yield from scheduler_speed.measure((64, 256))
    if "router" in args.only:
        yield from router_speed.measure((2, 100, 1000), 20_000)
    if "placement" in args.only:
        yield from placement_load.measure()
    if "machine" in args.only:
        yield from machine_speed.measure(args.model, args.dtypes, args.threads)
    if "engine" in args.only:
        yield from engine_speed.measure(
            args.model, args.dtypes, (1, 8, 32), args.threads, args.repeats
        )
    if "gap" in args.only:
        yield from gap_speed.measure(args.model, args.threads, args.repeats)
    if "prefix" in args.only:
        yield from prefix_speed.measure(args.model, args.threads, args.repeats)
    if "swap" in args.only:
        yield from swap_speed.measure(args.model, args.threads, args.repeats)
    if "http" in args.only:
        yield from http_speed.measure(args.model, args.repeats)
    if "calls" in args.only:
        yield from router_calls.measure(4_000)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate bench", description=__doc__)
    parser.add_argument("model", nargs="?", help="as for tidegate serve; the demo model if absent")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16", "float32"], help="dtypes of the engine"
    )
    parser.add_argument("--threads", type=int, help="CPU threads of the engine; torch's choice")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the median counts")
    return parser

"""Options of a command line that say which load is meant."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from experiments.arguments import CombinationError, number, whole
from experiments.loads.changes import capped, repeated, scaled, window
from experiments.loads.load import Load
from experiments.loads.rules import with_priorities, with_tenants
from experiments.loads.spec import KINDS, load_named
from experiments.loads.summary import summary
from experiments.loads.traces import FORMATS, WRITTEN, Written, read_trace, write_trace

# What makes another load of a trace, and its default.
_CHANGES: Final[Mapping[str, object]] = {
    "repeat": 1,
    "start": 0.0,
    "seconds": None,
    "rate_scale": 1.0,
    "length_scale": 1.0,
    "prompt_scale": 1.0,
    "output_scale": 1.0,
    "cap_tokens": None,
    "priorities": None,
    "tenants": None,
}


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that `load_of` reads."""
    group = parser.add_argument_group("load")
    group.add_argument(
        "--trace",
        required=True,
        metavar="FILE|SPEC",
        help="a trace, or a load to make up, such as poisson:rate=5,seconds=60,prompt=512,"
        f"output=128; kinds: {', '.join(KINDS)}",
    )
    group.add_argument(
        "--format", choices=FORMATS, help="how the trace is written; default: as it looks"
    )
    group.add_argument(
        "--repeat", type=whole(1, 10_000), default=1, metavar="N", help="the trace so many times"
    )
    group.add_argument(
        "--start",
        type=number(0, 1e8),
        default=0.0,
        metavar="S",
        help="leave out the first S seconds",
    )
    group.add_argument(
        "--seconds", type=number(1e-6, 1e8), metavar="S", help="only so many seconds of the trace"
    )
    for name, what in (
        ("rate", "the load comes so many times as fast (after --start and --seconds)"),
        ("length", "prompts and answers are so many times as long"),
        ("prompt", "prompts are so many times as long, on top of --length-scale"),
        ("output", "answers are so many times as long, on top of --length-scale"),
    ):
        kind = number(1e-6, 1e8)
        group.add_argument(f"--{name}-scale", type=kind, default=1.0, metavar="X", help=what)
    group.add_argument(
        "--cap-tokens",
        type=whole(2, 10**9),
        metavar="N",
        help="cut longer requests, answer included, to N",
    )
    group.add_argument(
        "--priorities",
        metavar="RULE",
        help="by share, such as 10:0.05,0:0.95, or by length, such as '10:prompt<=256,0'",
    )
    group.add_argument("--tenants", metavar="RULE", help="by share or length too: a:0.7,b:0.3")
    group.add_argument(
        "--seed",
        type=whole(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="of all that is drawn; default 0",
    )


def add_save_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that `save_of` reads."""
    group = parser.add_argument_group("to send the load with other tools")
    group.add_argument("--save-load", metavar="FILE", help="write the load, changed as asked for")
    group.add_argument("--as", dest="save_as", choices=WRITTEN, help="how; default csv")


def save_of(options: argparse.Namespace) -> tuple[str, Written] | None:
    """Return the file that the load goes to and its format, for `write_trace`; None for no file.

    Raises:
        CombinationError: there is a format and no file.
    """
    if options.save_load is not None:
        return options.save_load, options.save_as or "csv"
    if options.save_as is not None:
        raise CombinationError(f"--as {options.save_as} needs --save-load FILE")
    return None


def keep(load: Load, save: tuple[str, Written] | None, say: Callable[[str], None]) -> None:
    """Say what a load is, and write it if it is to be kept.

    Args:
        load: which.
        save: as `save_of` returns it.
        say: gets what the user should know, one line each.

    Raises:
        OSError: it cannot be written.
    """
    say(summary(load))
    if save is not None:
        write_trace(load, *save)
        say(f"wrote {save[0]}")


def load_of(options: argparse.Namespace, say: Callable[[str], None] = lambda _: None) -> Load:
    """Return the load that is meant.

    Args:
        options: as `add_load_options` makes them.
        say: gets what the user should know, one line each.

    Raises:
        LoadError: it cannot be had; one line.
    """
    load = _plain(options)
    load = window(repeated(load, options.repeat), options.start, options.seconds)
    load = scaled(
        load,
        options.rate_scale,
        options.length_scale * options.prompt_scale,
        options.length_scale * options.output_scale,
    )
    if options.cap_tokens is not None:
        load, cut = capped(load, options.cap_tokens)
        say(f"{cut} of {len(load.arrivals)} requests are cut to {options.cap_tokens} tokens.")
    # Each rule draws from a stream of its own, so that one does not change the other.
    if options.priorities is not None:
        load = with_priorities(load, options.priorities, _rng(options.seed, "priorities"))
    if options.tenants is not None:
        load = with_tenants(load, options.tenants, _rng(options.seed, "tenants"))
    return replace(load, name=_name(load.name, options))


def _name(name: str, options: argparse.Namespace) -> str:
    """Return a load's name with what was changed, so that a report tells one from another."""
    changes = [
        option.replace("_", " ") + (f" {value:g}" if isinstance(value, float) else f" {value}")
        for option, default in _CHANGES.items()
        if (value := getattr(options, option)) != default
    ]
    return f"{name} ({', '.join(changes)})" if changes else name


def _plain(options: argparse.Namespace) -> Load:
    if options.format is None:
        return load_named(options.trace, _rng(options.seed, "load"))
    return read_trace(options.trace, options.format)


def _rng(seed: int, what: str) -> Random:
    return Random(f"{seed} {what}")

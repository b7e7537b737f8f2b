"""Options of the validation's command line."""

import argparse
from typing import Any, Final

from deployments.config import ServeConfig
from deployments.flags import Parser, add_settings, help_of
from experiments.loads.load import Load
from experiments.loads.options import add_load_options, load_of

DEFAULTS: Final[dict[str, Any]] = {
    "replicas": 2,
    "threads": 1,
    "num_blocks": 2048,
    "prefix_cache": False,
}
"""Settings that are not as for ``tidegate serve`` unless they are given. A trace does not say what
prompts have in common, and what is sent twice must not be found in a cache."""
_ELSEWHERE: Final = ("model", "host", "port", "api_key", "key_file")


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = Parser(prog="validation", description=__doc__)
    made.add_argument("model", metavar="MODEL", nargs="?", help=help_of("model"))
    add_load_options(made)
    group = made.add_argument_group("validation")
    group.add_argument("--out", required=True, metavar="FOLDER", help="where the report goes")
    group.add_argument(
        "--rates",
        type=_rates,
        default=[1.0],
        metavar="X,Y",
        help="one run for each: the load comes so many times as fast, on top of --rate-scale",
    )
    group.add_argument(
        "--lasts",
        type=_lasts,
        default=120.0,
        metavar="S",
        help="seconds of each run: so much of the trace is taken, from --start on",
    )
    group.add_argument(
        "--step-time",
        metavar="FILE.json",
        help="a fit of this machine; default: it is made beside the server while that is idle",
    )
    group.add_argument(
        "--fit-seconds", type=_lasts, default=75.0, metavar="S", help="how long the fit measures"
    )
    settings = made.add_argument_group("settings of the server and of the simulation")
    names = [name for name in ServeConfig.model_fields if name not in _ELSEWHERE]
    add_settings(settings, names)
    return made


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given, or are so here by default."""
    given = {name: getattr(options, name, None) for name in ServeConfig.model_fields}
    kept = {name: value for name, value in given.items() if value is not None}
    return DEFAULTS | kept


def flags_of(settings: dict[str, Any]) -> list[str]:
    """Return settings as flags of ``tidegate serve``; the model is none of them."""
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if name == "model":
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def pieces_of(options: argparse.Namespace) -> list[tuple[float, Load]]:
    """Return the loads and how fast each comes.

    Raises:
        LoadError: as `load_of`.
    """
    made = []
    for rate in options.rates:
        scale = options.rate_scale * rate
        span = {"rate_scale": scale, "seconds": options.lasts * scale}
        made.append((scale, load_of(argparse.Namespace(**{**vars(options), **span}))))
    return made


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(1e-6 <= rate <= 1e6 for rate in rates):
        raise argparse.ArgumentTypeError(f"must be numbers above 0 and commas, not {text!r}")
    return rates


def _lasts(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"must be from 1 to 86400, not {text!r}")
    return value

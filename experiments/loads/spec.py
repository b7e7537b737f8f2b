"""Loads made up from a text such as ``poisson:rate=5,seconds=60,prompt=512,output=128``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from experiments.loads import times
from experiments.loads.conversations import Conversations
from experiments.loads.errors import SpecError
from experiments.loads.lengths import Apart, Lengths, Sampled, parse_length
from experiments.loads.load import Arrival, Load
from experiments.loads.traces import read_trace

_MOST = 10_000_000  # requests that are expected; more are a slip, and would fill the memory
_INF = float("inf")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a spec; ``default`` None: it must be given."""

    least: float
    most: float = _INF
    default: float | None = None
    whole: bool = False


_SECONDS = _Number(1e-3, 1e8)
_RATE = _Number(1e-6, 1e6)
_QUIET = _Number(0, 1e6)

Numbers: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of load.

    Attributes:
        numbers: that it takes, by name.
        times: when requests come.
        expected: how many of them, about.
    """

    numbers: Mapping[str, _Number]
    times: Callable[[Numbers, Random], Iterable[float]]
    expected: Callable[[Numbers], float]


_KINDS: Mapping[str, _Kind] = {
    "constant": _Kind(
        {"rate": _RATE, "seconds": _SECONDS},
        lambda n, rng: times.constant(n["rate"], n["seconds"]),
        lambda n: n["rate"] * n["seconds"],
    ),
    "poisson": _Kind(
        {"rate": _RATE, "seconds": _SECONDS},
        lambda n, rng: times.poisson(n["rate"], n["seconds"], rng),
        lambda n: n["rate"] * n["seconds"],
    ),
    "bursts": _Kind(
        {
            "rate": _QUIET,
            "size": _Number(1, 1e6, whole=True),
            "every": _SECONDS,
            "within": _Number(0, 1e8, default=1.0),
            "seconds": _SECONDS,
        },
        lambda n, rng: times.bursts(
            n["rate"], int(n["size"]), n["every"], n["within"], n["seconds"], rng
        ),
        lambda n: (n["rate"] + n["size"] / n["every"]) * n["seconds"],
    ),
    "square": _Kind(
        {
            "low": _QUIET,
            "high": _RATE,
            "period": _SECONDS,
            "share": _Number(0, 1, default=0.5),
            "seconds": _SECONDS,
        },
        lambda n, rng: times.thinned(
            times.square(n["low"], n["high"], n["period"], n["share"]),
            max(n["low"], n["high"]),
            n["seconds"],
            rng,
        ),
        lambda n: max(n["low"], n["high"]) * n["seconds"],
    ),
    "diurnal": _Kind(
        {
            "low": _QUIET,
            "high": _RATE,
            "period": _Number(1e-3, 1e8, default=86_400.0),
            "seconds": _SECONDS,
        },
        lambda n, rng: times.thinned(
            times.diurnal(n["low"], n["high"], n["period"]),
            max(n["low"], n["high"]),
            n["seconds"],
            rng,
        ),
        lambda n: max(n["low"], n["high"]) * n["seconds"],
    ),
    "conversations": _Kind(
        {
            "rate": _RATE,
            "think": _Number(1e-3, 1e8, default=30.0),
            "system": _Number(0, 1e7, default=0, whole=True),
            "piece": _Number(1, 1e6, default=16, whole=True),
            "seconds": _SECONDS,
        },
        lambda n, rng: times.poisson(n["rate"], n["seconds"], rng),
        lambda n: n["rate"] * n["seconds"],
    ),
}

KINDS = tuple(_KINDS)


def is_spec(text: str) -> bool:
    """Return whether this is meant as a spec: the name of a kind, then a colon or nothing."""
    return text.partition(":")[0] in _KINDS


def load_named(text: str, rng: Random) -> Load:
    """Return the load that a text means: one that is made up, or the trace of that path.

    Raises:
        SpecError: as `load_of_spec`; or it names neither a kind of load nor a file.
        TraceError: the file is wrong.
    """
    if is_spec(text):
        return load_of_spec(text, rng)
    kind, colon, _ = text.partition(":")
    if colon and not Path(text).exists():
        kinds = ", ".join(KINDS)
        raise SpecError(f"{text} is no file, and a load must be one of {kinds}, not {kind!r}")
    return read_trace(text)


def load_of_spec(text: str, rng: Random) -> Load:
    """Make up a load.

    Args:
        text: ``KIND:NAME=VALUE,…``. Kinds: ``constant`` and ``poisson`` (``rate``), ``bursts``
            (``rate``, ``size``, ``every``, ``within``), ``square`` and ``diurnal`` (``low``,
            ``high``, ``period``, and ``share`` of ``square``), ``conversations`` (``rate``,
            ``turns``, ``think``, ``system``, ``piece``). All need ``seconds``, and ``prompt`` and
            ``output`` (see `parse_length`), or instead of these ``lengths``, the path of a trace to
            draw both from, which conversations cannot.
        rng: of all draws.

    Raises:
        SpecError: the text is wrong; the message names what, its value and its limit.
        TraceError: the trace of ``lengths`` cannot be read.
    """
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise SpecError(f"a load must be one of {', '.join(KINDS)}, not {kind!r}")
    given = _pairs(kind, rest)
    what = _KINDS[kind]
    numbers = {name: _number(kind, name, limit, given) for name, limit in what.numbers.items()}
    if (expected := what.expected(numbers)) > _MOST:
        raise SpecError(f"{text} must have at most {_MOST} requests, not about {expected:g}")
    if kind == "conversations":
        return _conversations(text, numbers, given, list(what.times(numbers, rng)), rng)
    lengths = _lengths(kind, given)
    _nothing_left(kind, given, what, ("prompt", "output", "lengths"))
    arrivals = [Arrival(at, *lengths.draw(rng)) for at in what.times(numbers, rng)]
    return Load(text, _some(text, arrivals))


def _conversations(
    text: str, numbers: Numbers, given: dict[str, str], starts: list[float], rng: Random
) -> Load:
    shape = Conversations(
        turns=parse_length("turns", _taken("conversations", given, "turns")),
        think_s=numbers["think"],
        system=int(numbers["system"]),
        prompt=parse_length("prompt", _taken("conversations", given, "prompt")),
        output=parse_length("output", _taken("conversations", given, "output")),
        piece_tokens=int(numbers["piece"]),
    )
    _nothing_left("conversations", given, _KINDS["conversations"], ("turns", "prompt", "output"))
    arrivals = shape.arrivals(starts, numbers["seconds"], rng)
    return Load(text, _some(text, arrivals), shape.piece_tokens)


def _pairs(kind: str, text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = (one.strip() for one in part.partition("="))
        if not (name and equals and value):
            raise SpecError(f"{kind} must have NAME=VALUE between its commas, not {part!r}")
        if name in given:
            both = f"{given[name]!r} and {value!r}"
            raise SpecError(f"{name} of {kind} must be there once, not with {both}")
        given[name] = value
    return given


def _number(kind: str, name: str, limit: _Number, given: dict[str, str]) -> float:
    text = given.pop(name, None)
    if text is None:
        if limit.default is None:
            raise SpecError(f"{name} of {kind} must be given")
        return limit.default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not limit.least <= value <= limit.most or (limit.whole and not value.is_integer()):
        what = "a whole number" if limit.whole else "a number"
        raise SpecError(
            f"{name} of {kind} must be {what} from {limit.least:g} to {limit.most:g}, not {text!r}"
        )
    return value


def _lengths(kind: str, given: dict[str, str]) -> Lengths:
    path = given.pop("lengths", None)
    if path is None:
        return Apart(
            parse_length("prompt", _taken(kind, given, "prompt")),
            parse_length("output", _taken(kind, given, "output")),
        )
    for name in ("prompt", "output"):
        if name in given:
            raise SpecError(f"{name} of {kind} must not be given beside lengths: that has both")
    trace = read_trace(str(Path(path).expanduser()))
    return Sampled([(one.prompt_tokens, one.output_tokens) for one in trace.arrivals])


def _taken(kind: str, given: dict[str, str], name: str) -> str:
    if name not in given:
        raise SpecError(f"{name} of {kind} must be given")
    return given.pop(name)


def _nothing_left(kind: str, given: Mapping[str, Any], what: _Kind, more: Iterable[str]) -> None:
    for name in given:
        known = ", ".join((*what.numbers, *more))
        raise SpecError(f"{kind} takes {known}, not {name!r}")


def _some(text: str, arrivals: list[Arrival]) -> list[Arrival]:
    if not arrivals:
        raise SpecError(f"no request comes of {text}: its rate or its seconds must be higher")
    return arrivals

"""Rules that say which priority or tenant a request of a load has."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Literal

from experiments.loads.errors import SpecError
from experiments.loads.load import Arrival, Load

_BOUND = re.compile(r"(prompt|output|total)\s*(<=|>)\s*([0-9]{1,9})")
_TENANT = re.compile(r"[^\s,:]+")


@dataclass(frozen=True, slots=True)
class _Bound:
    """Requests of a length: up to a number of tokens, or above."""

    of: Literal["prompt", "output", "total"]
    above: bool
    tokens: int

    def holds(self, arrival: Arrival) -> bool:
        lengths = {
            "prompt": arrival.prompt_tokens,
            "output": arrival.output_tokens,
            "total": arrival.prompt_tokens + arrival.output_tokens,
        }
        return (lengths[self.of] > self.tokens) == self.above


@dataclass(frozen=True, slots=True)
class Shares:
    """Each request draws a label, each label as often as its weight says."""

    labels: Sequence[str]
    weights: Sequence[float]

    def assign(self, arrivals: Sequence[Arrival], rng: Random) -> list[str]:
        """Return the label of each request."""
        return rng.choices(self.labels, cum_weights=list(accumulate(self.weights)), k=len(arrivals))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first bound that holds gives the label; ``rest`` if none does."""

    bounds: Sequence[tuple[str, _Bound]]
    rest: str

    def assign(self, arrivals: Sequence[Arrival], rng: Random) -> list[str]:
        """Return the label of each request."""
        return [
            next((label for label, bound in self.bounds if bound.holds(one)), self.rest)
            for one in arrivals
        ]


def parse_rule(name: str, text: str) -> Shares | Bounds:
    """Return a rule from its text.

    Args:
        name: what it is a rule for, for errors.
        text: labels by share, ``10:0.05,0:0.95``, of which only the ratios count; or by length,
            ``10:prompt<=256,5:total<=1024,0``: the first that holds, and the last is for the rest.
            Lengths are ``prompt``, ``output`` and ``total``, with ``<=`` or ``>``.

    Raises:
        SpecError: the text is neither.
    """
    parts = [part.strip() for part in text.split(",")]
    pairs = [part.partition(":") for part in parts]
    if all(colon and not _BOUND.fullmatch(value) for _, colon, value in pairs):
        labels = [label for label, _, _ in pairs]
        if len(set(labels)) < len(labels):
            raise SpecError(f"{name} must have each of its labels once, not {text!r}")
        return Shares(labels, [_weight(name, value) for _, _, value in pairs])
    *bounded, last = pairs
    if last[1] or not last[0]:
        raise SpecError(f"{name} must end with a label for the rest, not with {parts[-1]!r}")
    return Bounds([(label, _bound(name, label, value)) for label, _, value in bounded], last[0])


def with_priorities(load: Load, rule: str, rng: Random) -> Load:
    """Return a load whose requests have the priorities that a rule gives.

    Raises:
        SpecError: the rule is wrong; see `parse_rule`.
    """
    labels = parse_rule("priorities", rule)
    numbers = {label: _priority(label) for label in _labels(labels)}
    given = labels.assign(load.arrivals, rng)
    arrivals = [
        replace(one, priority=numbers[label])
        for one, label in zip(load.arrivals, given, strict=True)
    ]
    return replace(load, arrivals=arrivals)


def with_tenants(load: Load, rule: str, rng: Random) -> Load:
    """Return a load whose requests have the tenants that a rule gives.

    Raises:
        SpecError: the rule is wrong; see `parse_rule`.
    """
    labels = parse_rule("tenants", rule)
    for label in _labels(labels):
        if not _TENANT.fullmatch(label):
            raise SpecError(f"a tenant must be a name without spaces, not {label!r}")
    given = labels.assign(load.arrivals, rng)
    arrivals = [replace(one, tenant=label) for one, label in zip(load.arrivals, given, strict=True)]
    return replace(load, arrivals=arrivals)


def _labels(rule: Shares | Bounds) -> list[str]:
    if isinstance(rule, Shares):
        return list(rule.labels)
    return [*(label for label, _ in rule.bounds), rule.rest]


def _priority(label: str) -> int:
    try:
        value = int(label)
    except ValueError:
        raise SpecError(f"a priority must be a whole number, not {label!r}") from None
    if abs(value) >= 2**31:
        raise SpecError(f"a priority must be from {1 - 2**31} to {2**31 - 1}, not {label}")
    return value


def _weight(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise SpecError(
            f"{name} must have a share above 0, or a bound such as prompt<=256, after each colon, "
            f"not {text!r}"
        )
    return value


def _bound(name: str, label: str, text: str) -> _Bound:
    found = _BOUND.fullmatch(text)
    if found is None:
        raise SpecError(
            f"{name} must say for {label!r} which lengths it has, such as prompt<=256, not {text!r}"
        )
    return _Bound(found[1], found[2] == ">", int(found[3]))  # type: ignore[arg-type]

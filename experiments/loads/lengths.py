"""Lengths of requests, drawn from a distribution or from a trace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from experiments.loads.errors import SpecError
from experiments.loads.limits import MOST_TOKENS


class Length(Protocol):
    """A number of tokens for each request, at least 1."""

    def draw(self, rng: Random) -> int:
        """Return one."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    def draw(self, rng: Random) -> int:
        """Return it."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each of ``low`` to ``high`` equally often."""

    low: int
    high: int

    def draw(self, rng: Random) -> int:
        """Return one."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A normal distribution of the logarithm: half are below ``median``, few are far above."""

    median: float
    sigma: float

    def draw(self, rng: Random) -> int:
        """Return one."""
        drawn = rng.lognormvariate(math.log(self.median), self.sigma)
        return min(MOST_TOKENS, max(1, round(drawn)))


class Lengths(Protocol):
    """Prompt and answer of each request."""

    def draw(self, rng: Random) -> tuple[int, int]:
        """Return tokens of a prompt and of its answer."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Prompt and answer know nothing of each other."""

    prompt: Length
    output: Length

    def draw(self, rng: Random) -> tuple[int, int]:
        """Return one of each."""
        return self.prompt.draw(rng), self.output.draw(rng)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Those of a request of a trace, each equally often."""

    pairs: Sequence[tuple[int, int]]

    def draw(self, rng: Random) -> tuple[int, int]:
        """Return those of one."""
        return self.pairs[rng.randrange(len(self.pairs))]


def parse_length(name: str, text: str) -> Length:
    """Return a distribution: ``512``, ``uniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA``.

    Args:
        name: what it is the length of, for errors.
        text: see above.

    Raises:
        SpecError: it is none of these, or a number is out of its limits.
    """
    kind, *numbers = text.split(":")
    if kind == "uniform" and len(numbers) == 2:
        low, high = (_tokens(name, number) for number in numbers)
        if low > high:
            raise SpecError(f"{name} must have its low before its high, not {text!r}")
        return Uniform(low, high)
    if kind == "lognormal" and len(numbers) == 2:
        return Lognormal(_tokens(name, numbers[0]), _sigma(name, numbers[1]))
    if numbers or kind in ("uniform", "lognormal"):
        raise SpecError(
            f"{name} must be N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA, not {text!r}"
        )
    return Fixed(_tokens(name, kind))


def _tokens(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MOST_TOKENS:
        raise SpecError(f"{name} must be a whole number from 1 to {MOST_TOKENS}, not {text!r}")
    return value


def _sigma(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 5:
        raise SpecError(f"the sigma of {name} must be from 0 to 5, not {text!r}")
    return value

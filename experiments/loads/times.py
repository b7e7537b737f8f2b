"""When requests of made-up loads come."""

import math
from collections.abc import Callable, Iterator
from random import Random


def constant(rate: float, seconds: float) -> Iterator[float]:
    """Yield times one after another, always ``1 / rate`` seconds apart, the first at 0."""
    count = 0
    while (at := count / rate) < seconds:
        yield at
        count += 1


def poisson(rate: float, seconds: float, rng: Random) -> Iterator[float]:
    """Yield the times of a Poisson process; none with a rate of 0."""
    if not rate:
        return
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def thinned(
    rate: Callable[[float], float], most: float, seconds: float, rng: Random
) -> Iterator[float]:
    """Yield the times of a Poisson process whose rate changes.

    By thinning: Lewis and Shedler, *Simulation of nonhomogeneous Poisson processes by thinning*,
    Naval Research Logistics Quarterly 26 (1979).

    Args:
        rate: requests in a second at a time.
        most: what that never exceeds.
        seconds: until when.
        rng: of all draws.
    """
    for at in poisson(most, seconds, rng):
        if rng.random() * most < rate(at):
            yield at


def square(low: float, high: float, period: float, share: float) -> Callable[[float], float]:
    """Return a rate that is ``low``, and ``high`` in the last ``share`` of each period."""
    return lambda at: high if at % period >= period * (1 - share) else low


def diurnal(low: float, high: float, period: float) -> Callable[[float], float]:
    """Return a rate that goes from ``low`` to ``high`` and back in a period, as a cosine."""
    return lambda at: low + (high - low) * (1 - math.cos(2 * math.pi * at / period)) / 2


def bursts(
    rate: float, size: int, every: float, within: float, seconds: float, rng: Random
) -> list[float]:
    """Return the times of a Poisson process and of bursts on top of it, sorted.

    Args:
        rate: of the process.
        size: requests of a burst.
        every: mean seconds between two bursts, which are a Poisson process too.
        within: seconds that a burst lasts.
        seconds: until when.
        rng: of all draws.
    """
    times = list(poisson(rate, seconds, rng))
    for start in poisson(1 / every, seconds, rng):
        times += [start + within * rng.random() for _ in range(size)]
    return sorted(at for at in times if at < seconds)

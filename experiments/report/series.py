"""Series: many points made few enough to draw, and times by when they began."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from experiments.report.percentiles import percentile

_LENGTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)


def thin(
    xs: Sequence[float], ys: Sequence[float], most: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Return at most ``most`` of the points, so that a line through them looks the same.

    The points are cut into stretches of equal count; of each the first that is lowest and the
    first that is highest stay, and the two ends. So no peak is lost, which averages would do.

    Args:
        xs: ascending.
        ys: a value for each, not NaN.
        most: >= 4.
    """
    length = len(xs)
    if length <= most:
        return xs, ys
    keep = {0, length - 1}
    stretches = (most - 2) // 2
    for i in range(stretches):
        part = range(i * length // stretches, (i + 1) * length // stretches)
        keep.add(min(part, key=lambda k: ys[k]))
        keep.add(max(part, key=lambda k: ys[k]))
    order = sorted(keep)
    return [xs[k] for k in order], [ys[k] for k in order]


def cumulated(
    values: Sequence[float], of: int, most: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the share of ``of`` that does not exceed x, for x ascending: an empirical CDF.

    Args:
        values: in any order.
        of: how many there are, those that have no value included; >= 1.
        most: points to return, about equally far apart in share; >= 2.
    """
    ordered = sorted(values)
    if not ordered:
        return [], []
    points = min(most, len(ordered))
    ranks = sorted({max(1, i * len(ordered) // points) for i in range(points + 1)})
    return [ordered[rank - 1] for rank in ranks], [rank / of for rank in ranks]


@dataclass(frozen=True, slots=True)
class Windows:
    """Percentiles of what began within each of equal stretches of time.

    Attributes:
        length_s: of a stretch.
        middles: of the stretches, in seconds.
        percentiles: by percent: for each stretch the value, NaN if nothing began in it.
    """

    length_s: float
    middles: Sequence[float]
    percentiles: dict[int, list[float]]


def windows(
    points: Sequence[tuple[float, float]],
    seconds: float,
    percents: Sequence[int],
    most: int,
) -> Windows:
    """Return percentiles over time.

    Args:
        points: when each began, in seconds from 0, and its value.
        seconds: how long it takes in all.
        percents: from 1 to 100.
        most: stretches, >= 1; their length is a round one.
    """
    round_ones = (float(length) for length in _LENGTHS_S if seconds <= length * most)
    length = next(round_ones, seconds / most)
    number = max(1, math.ceil(seconds / length))
    parts: list[list[float]] = [[] for _ in range(number)]
    for at, value in points:
        parts[min(number - 1, int(at / length))].append(value)
    for part in parts:
        part.sort()
    found = {
        percent: [percentile(part, percent) if part else math.nan for part in parts]
        for percent in percents
    }
    return Windows(length, [(i + 0.5) * length for i in range(number)], found)

"""Percentiles by nearest rank, and Spread: a few of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest of the values that at least ``percent`` % of them do not exceed.

    That is the value of rank ceil(percent / 100 * n), counted from 1: always one that occurred,
    never one between two.

    Args:
        ordered: the values, ascending, at least one.
        percent: from 1 to 100.
    """
    return ordered[-(-percent * len(ordered) // 100) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """How some values lie; percentiles by nearest rank.

    Attributes:
        count: of the values, >= 1.
        mean: arithmetic.
        p50, p90, p99: percentiles.
        most: the largest.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Return the spread of what is not None; None if that is nothing."""
        ordered = sorted(value for value in values if value is not None)
        if not ordered:
            return None
        p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
        mean = math.fsum(ordered) / len(ordered)
        return cls(len(ordered), mean, p50, p90, p99, ordered[-1])

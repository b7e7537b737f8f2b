"""Findings: the figures of all runs of a study."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from experiments.report.texts import number
from experiments.studies.measure import Measure


@dataclass(frozen=True, slots=True)
class Range:
    """One figure over all seeds.

    Attributes:
        middle: the median.
        low, high: the smallest and the largest.
    """

    middle: float
    low: float
    high: float

    def text(self, shown: float = 1.0) -> str:
        """Return it as a table shows it, each figure times ``shown``."""
        middle, low, high = (number(one * shown) for one in (self.middle, self.low, self.high))
        return middle if low == high else f"{middle} ({low} to {high})"


class Findings:
    """What was read off each run, by setting, variant and measure.

    Attributes:
        measures: what is read off each run.
    """

    def __init__(self, measures: Sequence[Measure]) -> None:
        """Begin with none."""
        self.measures = measures
        self._found: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, setting: str, variant: str, figures: dict[str, float | None]) -> None:
        """Take the figures of one run; None is left out."""
        kept = self._found.setdefault((setting, variant), {})
        for key, value in figures.items():
            if value is not None:
                kept.setdefault(key, []).append(value)

    @property
    def settings(self) -> list[str]:
        """In the order in which they came."""
        return list(dict.fromkeys(setting for setting, _ in self._found))

    def variants(self, setting: str) -> list[str]:
        """Those of a setting, in the order in which they came."""
        return [variant for of, variant in self._found if of == setting]

    def range(self, setting: str, variant: str, key: str) -> Range | None:
        """Return a figure over all seeds; None if no run had it."""
        values = self._found.get((setting, variant), {}).get(key)
        if not values:
            return None
        return Range(median(values), min(values), max(values))

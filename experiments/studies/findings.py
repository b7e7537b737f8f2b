"""Findings: the figures of all runs of a study."""

from collections.abc import Mapping, Sequence
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
        self._found: dict[tuple[str, str], list[Mapping[str, float | None]]] = {}

    def add(self, setting: str, variant: str, figures: Mapping[str, float | None]) -> None:
        """Take the figures of one run; those of one variant come in the order of their seeds."""
        self._found.setdefault((setting, variant), []).append(figures)

    @property
    def settings(self) -> list[str]:
        """In the order in which they came."""
        return list(dict.fromkeys(setting for setting, _ in self._found))

    def variants(self, setting: str) -> list[str]:
        """Those of a setting, in the order in which they came."""
        return [variant for of, variant in self._found if of == setting]

    def range(self, setting: str, variant: str, key: str) -> Range | None:
        """Return a figure over all seeds; None if no run had it."""
        return _range(self._values(setting, variant, key))

    def ratio(self, setting: str, variant: str, to: str, key: str) -> Range | None:
        """Return how many times another variant's figure it was, seed by seed.

        Both had the same load then, so that what differs between seeds is left out; None if no
        seed has both, or the other's is 0.
        """
        pairs = zip(
            self._values(setting, variant, key), self._values(setting, to, key), strict=True
        )
        return _range([one / other for one, other in pairs if one is not None and other])

    def _values(self, setting: str, variant: str, key: str) -> list[float | None]:
        return [figures.get(key) for figures in self._found.get((setting, variant), ())]


def _range(values: Sequence[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    return Range(median(known), min(known), max(known)) if known else None

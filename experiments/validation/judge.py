"""How near a simulation has to come to be called right, and how near it came."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from experiments.report.compare import Comparison
from experiments.report.table import Column, Table
from experiments.report.texts import NOTHING, share

LIMITS: Final = (("TTFT p50, s", 0.15), ("TPOT p50, ms", 0.15), ("output tokens", 0.01))
"""Figures of a comparison that are judged, and how far off each may be, as a share."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure of one load.

    Attributes:
        load: as it is to be called.
        figure: its name in the comparison.
        simulated, measured: its values; None if there is none.
        limit: how far off it may be, as a share of what was measured.
    """

    load: str
    figure: str
    simulated: float | None
    measured: float | None
    limit: float

    @property
    def off(self) -> float | None:
        """How far off it is, signed, as a share of what was measured; None if that says nothing."""
        if self.simulated is None or not self.measured:
            return None
        return self.simulated / self.measured - 1.0

    @property
    def fine(self) -> bool:
        """Whether it is within its limit."""
        return self.off is not None and abs(self.off) <= self.limit


def judge(load: str, comparison: Comparison) -> list[Verdict]:
    """Return the verdict on each figure that is judged."""
    pairs = [(comparison[name], limit) for name, limit in LIMITS]
    return [Verdict(load, pair.name, pair.simulated, pair.measured, limit) for pair, limit in pairs]


def table(verdicts: Sequence[Verdict]) -> Table:
    """Return the verdicts for people."""
    columns = [
        Column("Load", text=True),
        Column("Figure", text=True),
        Column("Simulated"),
        Column("Measured"),
        Column("Off by"),
        Column("May be"),
        Column("", text=True),
    ]
    rows = [
        [
            one.load,
            one.figure,
            _number(one.simulated),
            _number(one.measured),
            NOTHING if one.off is None else f"{one.off:+.1%}",
            share(one.limit),
            "yes" if one.fine else "NO",
        ]
        for one in verdicts
    ]
    return Table("Verdict", columns, rows, "Simulated against measured; medians.")


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"

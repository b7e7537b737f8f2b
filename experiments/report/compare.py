"""Comparison: the same load simulated and measured, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.percentiles import Spread
from experiments.report.summary import Summary, summarise
from experiments.report.table import Column, Table
from experiments.report.targets import Targets
from experiments.report.texts import NOTHING, count
from experiments.simulator.outcome import Run


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both.

    Attributes:
        name: what it is, with its unit.
        simulated, measured: None if there is none.
    """

    name: str
    simulated: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Simulated by measured; None where that says nothing."""
        if self.simulated is None or not self.measured:
            return None
        return self.simulated / self.measured


@dataclass(frozen=True, slots=True)
class Comparison:
    """A simulated run beside a measured one.

    Attributes:
        simulated, measured: the runs.
        pairs: their figures.
    """

    simulated: Run
    measured: Run
    pairs: Sequence[Pair]

    def __getitem__(self, name: str) -> Pair:
        """Return the pair of this name.

        Raises:
            KeyError: there is none.
        """
        for pair in self.pairs:
            if pair.name == name:
                return pair
        raise KeyError(name)

    def table(self) -> Table:
        """Return the figures side by side, with their ratio."""
        columns = [
            Column("Figure", text=True),
            Column("Simulated"),
            Column("Measured"),
            Column("Simulated / measured"),
        ]
        rows = [
            [
                pair.name,
                count(pair.simulated),
                count(pair.measured),
                NOTHING if pair.ratio is None else f"{pair.ratio:.3f}",
            ]
            for pair in self.pairs
        ]
        note = f"Simulated: {self.simulated.name}. Measured: {self.measured.name}."
        return Table("Simulated and measured", columns, rows, note)


def compare(simulated: Run, measured: Run) -> Comparison:
    """Set a simulated run beside the measured run of the same load.

    Times are over the requests that were answered in full; percentiles by nearest rank. What
    only one of the two has counted is left out.
    """
    one, other = (summarise(run, Targets(None, None)) for run in (simulated, measured))
    pairs = [
        *_counts(one, other),
        *_times("TTFT", "s", 1, one.all.ttft_s, other.all.ttft_s),
        *_times("TPOT", "ms", 1000, one.all.tpot_s, other.all.tpot_s),
        *_times("to last token", "s", 1, one.all.e2e_s, other.all.e2e_s),
        Pair("output tokens/s", one.tokens_per_s, other.tokens_per_s),
        Pair("seconds", one.seconds, other.seconds),
    ]
    if one.replica_hours and other.replica_hours:
        pairs.append(Pair("replica-hours", one.replica_hours, other.replica_hours))
    pairs += [
        Pair(name.replace("_", " "), value, other.counts[name])
        for name, value in one.counts.items()
        if name in other.counts
    ]
    return Comparison(simulated, measured, pairs)


def _counts(one: Summary, other: Summary) -> list[Pair]:
    a, b = one.all, other.all
    return [
        Pair("requests", a.requests, b.requests),
        Pair("answered", a.answered, b.answered),
        Pair("refused", a.refused, b.refused),
        Pair("failed", a.failed, b.failed),
        Pair("prompt tokens", a.prompt_tokens, b.prompt_tokens),
        Pair("output tokens", a.output_tokens, b.output_tokens),
    ]


def _times(
    name: str, unit: str, scale: float, one: Spread | None, other: Spread | None
) -> list[Pair]:
    def part(spread: Spread | None, percent: str) -> float | None:
        return None if spread is None else getattr(spread, percent) * scale

    return [
        Pair(f"{name} {percent}, {unit}", part(one, percent), part(other, percent))
        for percent in ("p50", "p90", "p99")
    ]

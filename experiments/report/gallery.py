"""Which plots a report has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from experiments.report import comparisons, overlays, plots
from experiments.report.drawing import Plot
from experiments.report.report import Report
from experiments.report.scales import Scales

MOST_RUNS: Final = 12
"""Runs that are drawn one by one; more would be too small to read, and the page too large."""


@dataclass(frozen=True, slots=True)
class Wall:
    """Plots of the same kind, one for each run, on the same scales.

    Attributes:
        name: of the kind, as a file's.
        title: what they show.
        plots: one for each of the first `MOST_RUNS` runs.
        names: of these runs.
    """

    name: str
    title: str
    plots: Sequence[Plot]
    names: Sequence[str]


def across(report: Report) -> list[Plot]:
    """Return the plots that set all runs against one another; none for one run."""
    if len(report.runs) < 2:
        return []
    scales = Scales.of(report.runs, report.targets)
    return [
        comparisons.cost(report.summaries, report.targets),
        comparisons.ladder(report.summaries, scales, report.targets),
    ]


def walls(report: Report) -> list[Wall]:
    """Return the plots of each run."""
    runs, summaries = report.runs[:MOST_RUNS], report.summaries[:MOST_RUNS]
    scales = Scales.of(runs, report.targets)
    both = list(zip(runs, summaries, strict=True))
    found = [
        [plots.ttft_by_priority(run, summary, scales, report.targets) for run, summary in both],
        [plots.ttft_over_time(run, summary, scales, report.targets) for run, summary in both],
        [plots.fleet(run, summary, scales) for run, summary in both if run.samples],
    ]
    names = [run.name for run in runs]
    sampled = [run.name for run in runs if run.samples]
    return [
        Wall(drawn[0].name, drawn[0].title, drawn, of)
        for drawn, of in zip(found, (names, names, sampled), strict=True)
        if drawn
    ]


def over(report: Report) -> list[Plot]:
    """Return the plots of simulated runs over measured ones."""
    found: list[Plot] = []
    for i, comparison in enumerate(report.comparisons, 1):
        ending = f"-{i}" if len(report.comparisons) > 1 else ""
        found += overlays.overlays(comparison, ending)
    return found


def for_files(report: Report) -> list[Plot]:
    """Return each plot as a file shows it: what is drawn for each run, side by side in one."""
    side = [
        plots.side_by_side(wall.name, wall.title, wall.plots, wall.names) for wall in walls(report)
    ]
    return [*across(report), *over(report), *side]

"""Lines: a figure of each variant over what settings vary, several panels side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.report.axes import seconds_axis
from experiments.report.drawing import Area, Plot
from experiments.report.look import DASHES, SERIES
from experiments.report.texts import number
from experiments.studies.findings import Findings, Range


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the drawings of a plot.

    Attributes:
        title: what y is, with its unit.
        key: of the measure that y is.
        points: the settings, and what x is in each, ascending.
        x: what x is, with its unit.
        far: y may be as far apart as powers of ten are, and is drawn that way; else from 0.
        target: where a line is to be drawn across, in the unit that is shown.
    """

    title: str
    key: str
    points: Sequence[tuple[str, float]]
    x: str
    far: bool = False
    target: float | None = None


_WIDTH, _HEIGHT, _TOP = 320.0, 210.0, 24.0
_ASIDE = 0.012


def lines(findings: Findings, name: str, title: str, panels: Sequence[Panel]) -> Plot:
    """Return a plot in which each variant has a line: medians, and bars from lowest to highest.

    Args:
        findings: where the figures are.
        name: of the plot's file.
        title: what it shows.
        panels: from left to right.
    """
    names = list(
        dict.fromkeys(
            variant
            for panel in panels
            for setting, _ in panel.points
            for variant in findings.variants(setting)
        )
    )

    def draw(area: Area) -> None:
        for i, panel in enumerate(panels):
            part = Area(area.figure, area.x + i * _WIDTH, area.y, _WIDTH, area.height - _TOP)
            axes = part.axes(38, 14, 30, 20)
            _draw(axes, findings, panel, names)
            if i == 0:
                handles, labels = axes.get_legend_handles_labels()
                place = (area.x + 8, area.y + area.height - 4)
                width, height = (float(size) * 72 for size in area.figure.get_size_inches())
                area.figure.legend(
                    handles,
                    labels,
                    loc="upper left",
                    bbox_to_anchor=(place[0] / width, place[1] / height),
                    ncols=len(labels),
                )

    alt = " ".join(_said(findings, panel, names) for panel in panels)
    return Plot(name, title, alt, _WIDTH * len(panels), _HEIGHT + _TOP, draw)


def _draw(axes: Axes, findings: Findings, panel: Panel, names: Sequence[str]) -> None:
    axes.set_title(panel.title)
    shown = {measure.key: measure.shown for measure in findings.measures}[panel.key]
    everything: list[float] = [] if panel.target is None else [panel.target]
    for k, name in enumerate(names):
        xs: list[float] = []
        found: list[Range] = []
        for setting, x in panel.points:
            one = findings.range(setting, name, panel.key)
            if one is not None:
                xs.append(x)
                found.append(one)
        # Beside one another, so that no bar hides another.
        aside = _ASIDE * _span(panel) * (k - (len(names) - 1) / 2)
        middles = [one.middle * shown for one in found]
        below = [(one.middle - one.low) * shown for one in found]
        above = [(one.high - one.middle) * shown for one in found]
        everything += [one.low * shown for one in found] + [one.high * shown for one in found]
        axes.errorbar(
            [x + aside for x in xs],
            middles,
            (below, above),
            color=SERIES[k % len(SERIES)],
            linestyle=DASHES[k % len(DASHES)],
            elinewidth=0.8,
            marker="o",
            markersize=2.4,
            label=name,
            # A dot at 0 is as round as others; on a scale without a 0 there is no place for it.
            clip_on=panel.far,
        )
    _scale(axes, panel, everything)
    axes.set_xlabel(panel.x)


def _scale(axes: Axes, panel: Panel, values: Sequence[float]) -> None:
    places = [x for _, x in panel.points]
    room = 0.06 * _span(panel)
    axes.set_xlim(min(places) - room, max(places) + room)
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    positive = [value for value in values if value > 0]
    if panel.far and positive:
        seconds_axis(axes, "y", min(positive) * 0.8, max(positive) * 1.25)
    else:
        axes.set_ylim(0, max(positive, default=1.0) * 1.08)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    if panel.target is not None:
        axes.axhline(panel.target, color="#5d6a6e", linewidth=0.8, linestyle=(0, (2, 2)))


def _span(panel: Panel) -> float:
    """Return how far apart the outermost points are; 1 for a single one."""
    places = [x for _, x in panel.points]
    return (max(places) - min(places)) or 1.0


def _said(findings: Findings, panel: Panel, names: Sequence[str]) -> str:
    shown = {measure.key: measure.shown for measure in findings.measures}[panel.key]
    parts: list[str] = []
    for name in names:
        found = [findings.range(setting, name, panel.key) for setting, _ in panel.points]
        values = ", ".join(number(one.middle * shown) for one in found if one is not None)
        if values:
            parts.append(f"{name} {values}")
    at = ", ".join(f"{x:g}" for _, x in panel.points)
    return f"{panel.title}, at {panel.x} of {at}: {'; '.join(parts)}."

"""The plots that set runs against one another: cost and service level, and time to first token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.report.axes import panels, seconds_axis, share_axis, target_line
from experiments.report.drawing import Area, Plot
from experiments.report.labels import Labels
from experiments.report.look import GROUND, SERIES, SOFT
from experiments.report.percentiles import Spread
from experiments.report.plots import WIDTH, short
from experiments.report.scales import Scales
from experiments.report.summary import Summary
from experiments.report.targets import Targets
from experiments.report.texts import number, share

_MOST_ROWS: Final = 60


def cost(summaries: Sequence[Summary], targets: Targets) -> Plot:
    """Replica-hours against the share of requests that missed a target, a point for each run."""
    points = [(s.replica_hours, s.all.missed_share or 0.0) for s in summaries]

    def draw(area: Area) -> None:
        (axes,) = panels(area)
        axes.set_title("Requests that missed the target, %")
        axes.set_xlabel("replica-hours")
        _limit(axes, points)
        best = [point for point in points if not _beaten(point, points)]
        front = sorted(set(best))
        xs, ys = [x for x, _ in front], [y for _, y in front]
        axes.plot(xs, ys, color=SERIES[0], linewidth=0.8, drawstyle="steps-post", zorder=2)
        for point in points:
            colour = SERIES[0] if point in best else SOFT
            axes.plot(*point, "o", color=colour, markersize=5, zorder=3, markeredgecolor=GROUND)
        _label(axes, points, [short(s.run, 30) for s in summaries])

    parts = [
        f"{i}, {s.run}: {number(s.replica_hours)} replica-hours, {share(s.all.missed_share)} missed"
        for i, s in enumerate(summaries, 1)
    ]
    alt = f"Target: {targets}. {'; '.join(parts)}."
    return Plot("cost", "Cost against service level", alt, WIDTH, 240, draw)


def ladder(summaries: Sequence[Summary], scales: Scales, targets: Targets) -> Plot:
    """Percentiles of the time to first token of each run, by priority if there are several."""
    several = len(scales.priorities) > 1
    rows: list[_Row] = []
    shown = 0
    for summary in summaries:
        of_run = _rows(shown + 1, summary, scales)
        if len(rows) + len(of_run) > _MOST_ROWS:
            break
        rows += of_run
        shown += 1

    def draw(area: Area) -> None:
        (axes,) = panels(area, left=30)
        target = "" if targets.ttft_s is None else "   ┊ target"
        axes.set_title(f"● median   ━ to p90   ─ to p99{target}")
        axes.grid(False)
        axes.grid(True, axis="x")
        seconds_axis(axes, "x", scales.ttft_low_s, scales.ttft_high_s)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks([])
        axes.set_xlabel("time to first token, seconds")
        target_line(axes, "x", targets.ttft_s, named=False)
        for y, row in enumerate(rows):
            row.draw(axes, y)

    parts = [
        f"{s.run}: median {number(s.all.ttft_s.p50)} s, p90 {number(s.all.ttft_s.p90)} s, "
        f"p99 {number(s.all.ttft_s.p99)} s"
        for s in summaries[:shown]
        if s.all.ttft_s is not None
    ]
    alt = f"{'; '.join(parts) or 'No request was answered'}."
    title = "Time to first token by priority" if several else "Time to first token"
    if shown < len(summaries):
        title += f", of the first {shown} of {len(summaries)} runs"
    return Plot("ttft", title, alt, WIDTH, 52 + 13.0 * len(rows), draw)


def _rows(place: int, summary: Summary, scales: Scales) -> list["_Row"]:
    """Return what a run takes: a row for its name, and one for each priority that it has."""
    several = len(scales.priorities) > 1
    rows = [_Row(f"{place}:  {short(summary.run, 48)}", None, 0)]
    groups = {group.name: group for group in summary.priorities}
    for k, priority in enumerate(scales.priorities):
        group = groups.get(str(priority)) if several else summary.all
        if group is not None:
            rows.append(_Row(str(priority) if several else "", group.ttft_s, k))
    return rows


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    spread: Spread | None
    series: int

    def draw(self, axes: Axes, y: int) -> None:
        place = axes.get_yaxis_transform()
        if self.spread is None:
            axes.text(-0.085, y, self.label, transform=place, va="center")
            return
        axes.text(-0.02, y, self.label, transform=place, va="center", ha="right", color=SOFT)
        middle, colour = self.spread.p50, SERIES[self.series]
        for end, width in ((self.spread.p99, 1), (self.spread.p90, 4)):
            axes.plot([middle, end], [y, y], color=colour, linewidth=width, solid_capstyle="butt")
        axes.plot([middle], [y], "o", color=colour, markersize=5, markeredgecolor=GROUND)


def _beaten(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Whether another run costs no more, misses no more, and is not the same in both."""
    return any(x <= point[0] and y <= point[1] and (x, y) != point for x, y in points)


def _limit(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    # From 0 unless that would squeeze them into a corner.
    start = 0.0 if low < high / 2 or high == 0 else low - max(0.1 * (high - low), 0.02 * high)
    axes.set_xlim(start, (high + 0.08 * (high - start)) or 1.0)
    most = max(max(y for _, y in points), 0.01)
    share_axis(axes, most * 1.1)
    axes.set_ylim(-0.05 * most, most * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _label(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write at each point its number, and its name where there is room; one label for points
    that lie on one another.
    """
    labels = Labels(axes, points)
    for heap in labels.heaps(range(len(points))):
        numbers = ", ".join(str(i + 1) for i in heap)
        texts = [f"{numbers}: {names[heap[0]]}", numbers] if len(heap) == 1 else [numbers]
        labels.put(heap[0], texts)

"""The plots that set runs against one another: cost and service level, and time to first token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.report.axes import panels, seconds_axis, share_axis, target_line, text_width
from experiments.report.drawing import Area, Plot
from experiments.report.look import GROUND, SERIES, SOFT, TEXT_PT
from experiments.report.percentiles import Spread
from experiments.report.plots import WIDTH, short
from experiments.report.scales import Scales
from experiments.report.summary import Summary
from experiments.report.targets import Targets
from experiments.report.texts import number, share

_NEAR_PT: Final = 9.0
_AROUND_PT: Final = 2.0
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
    width, height = (float(x) for x in (axes.bbox.width, axes.bbox.height))
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    places = [
        ((x - left) / (right - left) * width, (y - low) / (high - low) * height) for x, y in points
    ]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for heap in _heaps(places):
        numbers = ", ".join(str(i + 1) for i in heap)
        texts = [f"{numbers}: {names[heap[0]]}", numbers] if len(heap) == 1 else [numbers]
        for text, side, box in _boxes(texts, places[heap[0]]):
            inside = box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= height
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                # By the side that is next to the point: a page has fonts of its own.
                x = {"left": box[0], "right": box[2], "center": (box[0] + box[2]) / 2}[side]
                where = (x / width, (box[1] + box[3]) / 2 / height)
                ground = {"facecolor": GROUND, "edgecolor": "none", "pad": 0.5, "alpha": 0.85}
                axes.text(*where, text, transform=axes.transAxes, ha=side, va="center", bbox=ground)
                break


def _heaps(places: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Return the places' numbers, those together that are too near for labels of their own."""
    heaps: list[list[int]] = []
    for i, place in enumerate(places):
        for heap in heaps:
            x, y = places[heap[0]]
            if abs(place[0] - x) < _NEAR_PT and abs(place[1] - y) < _NEAR_PT:
                heap.append(i)
                break
        else:
            heaps.append([i])
    return heaps


_Box: TypeAlias = tuple[float, float, float, float]
_Side: TypeAlias = Literal["left", "right", "center"]


def _boxes(texts: Sequence[str], place: tuple[float, float]) -> list[tuple[str, _Side, _Box]]:
    """Return where each text could stand around a point, the best first."""
    found: list[tuple[str, _Side, _Box]] = []
    x, y = place
    for text in texts:
        wide, half = text_width(text) + _AROUND_PT, TEXT_PT * 0.65
        spots: tuple[tuple[_Side, float, float], ...] = (
            ("left", x + 6, y),
            ("right", x - 6 - wide, y),
            ("center", x - wide / 2, y + 11),
            ("center", x - wide / 2, y - 11),
            ("left", x + 5, y + 10),
            ("left", x + 5, y - 10),
            ("right", x - 5 - wide, y + 10),
            ("right", x - 5 - wide, y - 10),
        )
        for side, left, middle in spots:
            found.append((text, side, (left, middle - half, left + wide, middle + half)))
    return found


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

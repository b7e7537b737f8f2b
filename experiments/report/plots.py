"""The plots of one run, and several runs side by side in one file."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from matplotlib.axes import Axes

from experiments.report.axes import (
    count_axis,
    legend,
    panels,
    say,
    seconds_axis,
    share_axis,
    target_line,
    time_axis,
)
from experiments.report.drawing import Area, Plot
from experiments.report.look import DASHES, SERIES
from experiments.report.scales import Scales
from experiments.report.series import cumulated, thin, windows
from experiments.report.summary import Summary
from experiments.report.targets import Targets
from experiments.report.texts import count, number, plain, share
from experiments.simulator.outcome import Outcome, Run, Sample

WIDTH: Final = 320.0
_POINTS: Final = 400
_WINDOWS: Final = 60
_TITLE: Final = 24.0
"""Room for a run's name above its plots."""


def fleet(run: Run, summary: Summary, scales: Scales, name: str = "fleet") -> Plot:
    """Replicas, requests that wait, and blocks in use, over time."""

    def draw(area: Area) -> None:
        replicas, waiting, blocks = panels(area, 3)
        replicas.set_title("Replicas")
        _line(replicas, run, lambda s: s.serving, 0, "serving", step=True)
        if any(s.starting for s in run.samples):
            _line(replicas, run, lambda s: s.starting, 2, "starting", step=True)
        if run.kind == "simulated":  # no live server tells
            _line(replicas, run, lambda s: s.wanted, 1, "wanted", step=True)
        count_axis(replicas, scales.replicas)
        waiting.set_title("Requests that wait")
        _line(waiting, run, lambda s: s.queued, 1, "in the router")
        _line(waiting, run, lambda s: s.waiting, 0, "in replicas")
        count_axis(waiting, scales.waiting)
        blocks.set_title("Blocks in use, %")
        _line(blocks, run, _used, 0, "")
        share_axis(blocks)
        for axes in (replicas, waiting):
            legend(axes)
        time_axis(blocks, scales.seconds)

    alt = (
        f"{run.name} over {number(run.seconds)} s: {number(summary.mean_replicas)} replicas on "
        f"average, {count(summary.most_replicas)} at most; at most "
        f"{count(summary.most_queued)} requests waited in the router, "
        f"{count(summary.most_waiting)} in replicas; at most {share(summary.most_used_share)} of "
        "the blocks were in use."
    )
    return Plot(name, "Replicas, requests that wait, and blocks", alt, WIDTH, 330, draw)


def ttft_by_priority(
    run: Run, summary: Summary, scales: Scales, targets: Targets, name: str = "ttft-by-priority"
) -> Plot:
    """The share of each priority's requests that had their first token within a time."""

    def draw(area: Area) -> None:
        several = len(scales.priorities) > 1
        (axes,) = panels(area, top=34 if several else 20)
        axes.set_title("Requests that have it, %")
        for i, priority in enumerate(scales.priorities):
            of = [outcome for outcome in run.outcomes if outcome.priority == priority]
            xs, ys = cumulated(_ttfts(of), max(1, len(of)), _POINTS // 2)
            if xs:
                # From nothing upwards, and flat to the edge once all have it.
                xs = [xs[0], *xs, max(xs[-1], scales.ttft_high_s)]
                ys = [0.0, *ys, ys[-1]]
                label = f"priority {priority}" if i == 0 else str(priority)
                axes.plot(xs, ys, color=SERIES[i], linestyle=DASHES[i], label=label)
        if summary.all.ttft_s is None:
            say(axes, "No request was answered.")
        elif several:
            legend(axes, below=True)
        seconds_axis(axes, "x", scales.ttft_low_s, scales.ttft_high_s)
        share_axis(axes)
        axes.set_xlabel("time to first token, seconds")
        target_line(axes, "x", targets.ttft_s)

    parts = [
        f"priority {group.name}: half within {number(group.ttft_s.p50)} s, 9 of 10 within "
        f"{number(group.ttft_s.p90)} s, the slowest {number(group.ttft_s.most)} s"
        for group in summary.priorities
        if group.ttft_s is not None
    ]
    alt = f"{run.name}: {'; '.join(parts) or 'no request was answered'}."
    title = f"Time to first token{' by priority' if len(scales.priorities) > 1 else ''}"
    return Plot(name, title, alt, WIDTH, 204, draw)


def ttft_over_time(
    run: Run, summary: Summary, scales: Scales, targets: Targets, name: str = "ttft-over-time"
) -> Plot:
    """Percentiles of the time to first token, by when the request came."""
    points = [(outcome.at, ttft) for outcome in run.outcomes for ttft in _ttfts([outcome])]
    found = windows(points, max(scales.seconds, 1.0), (50, 90, 99), _WINDOWS)

    def draw(area: Area) -> None:
        (axes,) = panels(area)
        axes.set_title("Time to first token, s")
        for i, percent in ((0, 50), (1, 90), (3, 99)):
            axes.plot(
                found.middles,
                [value if value > 0 else math.nan for value in found.percentiles[percent]],
                color=SERIES[i],
                linestyle=DASHES[i],
                label="median" if percent == 50 else f"p{percent}",
                marker="o",
                markersize=1.6,
            )
        if summary.all.ttft_s is None:
            say(axes, "No request was answered.")
        else:
            legend(axes)
        seconds_axis(axes, "y", scales.ttft_low_s, scales.ttft_high_s)
        time_axis(axes, scales.seconds)
        axes.set_xlabel(f"{axes.get_xlabel()}, {found.length_s:g} s a point")
        target_line(axes, "y", targets.ttft_s)

    worst = max(
        ((value, at) for at, value in zip(found.middles, found.percentiles[90], strict=True)
         if not math.isnan(value)),
        default=None,
    )  # fmt: skip
    said = "no request was answered" if worst is None else (
        f"the 90th percentile is highest at {number(worst[1])} s, with {number(worst[0])} s"
    )  # fmt: skip
    return Plot(name, "Time to first token over time", f"{run.name}: {said}.", WIDTH, 190, draw)


def side_by_side(name: str, title: str, plots: Sequence[Plot], names: Sequence[str]) -> Plot:
    """Return the plots, all of one size, as one with up to four in a row.

    Args:
        name: of the file.
        title: what they show.
        plots: at least one.
        names: of what each shows, written above it.
    """
    columns = min(len(plots), 4 if len(plots) > 6 else 3)
    rows = math.ceil(len(plots) / columns)
    width, height = plots[0].width, plots[0].height + _TITLE

    def draw(area: Area) -> None:
        for i, (plot, of) in enumerate(zip(plots, names, strict=True)):
            x, y = i % columns * width, (rows - 1 - i // columns) * height
            part = Area(area.figure, area.x + x, area.y + y, plot.width, plot.height)
            part.name(short(of))
            plot.draw(part)

    alt = " ".join(plot.alt for plot in plots)
    return Plot(name, title, alt, width * columns, height * rows, draw)


def short(name: str, letters: int = 44) -> str:
    """Return a run's name, cut to what fits above a plot."""
    name = plain(name)
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _line(
    axes: Axes,
    run: Run,
    of: Callable[[Sample], float],
    series: int,
    label: str,
    *,
    step: bool = False,
) -> None:
    xs, ys = thin([s.at for s in run.samples], [of(s) for s in run.samples], _POINTS)
    axes.plot(
        xs,
        ys,
        color=SERIES[series],
        linestyle=DASHES[series],
        label=label or None,
        drawstyle="steps-post" if step else "default",
    )


def _used(sample: Sample) -> float:
    return 1 - sample.free_blocks / sample.total_blocks if sample.total_blocks else 0.0


def _ttfts(outcomes: Sequence[Outcome]) -> list[float]:
    times = (outcome.ttft_s for outcome in outcomes if outcome.status == "ok")
    return [time for time in times if time is not None]

"""The plots of a simulated run over a measured one."""

from collections.abc import Callable, Sequence

from experiments.report.axes import (
    count_axis,
    legend,
    panels,
    say,
    seconds_axis,
    share_axis,
    time_axis,
)
from experiments.report.compare import Comparison
from experiments.report.drawing import Area, Plot
from experiments.report.look import DASHES, SERIES
from experiments.report.percentiles import percentile
from experiments.report.plots import WIDTH
from experiments.report.series import cumulated, thin
from experiments.report.texts import number
from experiments.simulator.outcome import Outcome, Run, Sample

_POINTS = 300


def overlays(comparison: Comparison, ending: str = "") -> list[Plot]:
    """Return the plots of one comparison; ``ending`` tells their files from another's."""
    found = [
        _times(comparison, "ttft", "time to first token", lambda o: o.ttft_s, ending),
        _times(comparison, "tpot", "time per output token", lambda o: o.tpot_s, ending),
    ]
    if comparison.simulated.samples and comparison.measured.samples:
        found.append(_held(comparison, ending))
    return found


def _both(comparison: Comparison) -> tuple[tuple[str, Run], tuple[str, Run]]:
    return ("measured", comparison.measured), ("simulated", comparison.simulated)


def _times(
    comparison: Comparison,
    name: str,
    what: str,
    of: Callable[[Outcome], float | None],
    ending: str,
) -> Plot:
    found = {kind: _values(run.outcomes, of) for kind, run in _both(comparison)}

    def draw(area: Area) -> None:
        (axes,) = panels(area)
        axes.set_title("Requests that have it, %")
        for i, (kind, run) in enumerate(_both(comparison)):
            xs, ys = cumulated(found[kind], max(1, len(run.outcomes)), _POINTS)
            axes.plot(xs, ys, color=SERIES[i], linestyle=DASHES[i], label=kind)
        legend(axes)
        every = sorted(value for values in found.values() for value in values if value > 0)
        if every:
            low = percentile(every, 1) * 0.8
            seconds_axis(axes, "x", low, max(every[-1], low) * 1.25)
        else:
            say(axes, "No request has one.")
        share_axis(axes)
        axes.set_xlabel(f"{what}, seconds")

    said = (f"{kind}: {_middle(values)}" for kind, values in found.items())
    title = f"{what[0].upper()}{what[1:]}, simulated and measured"
    return Plot(f"compared-{name}{ending}", title, f"{'; '.join(said)}.", WIDTH, 190, draw)


def _held(comparison: Comparison, ending: str) -> Plot:
    def held(sample: Sample) -> int:
        return sample.queued + sample.waiting + sample.running

    most = {kind: max(map(held, run.samples)) for kind, run in _both(comparison)}

    def draw(area: Area) -> None:
        (axes,) = panels(area)
        axes.set_title("Requests in the system")
        for i, (kind, run) in enumerate(_both(comparison)):
            xs, ys = thin([s.at for s in run.samples], [held(s) for s in run.samples], _POINTS)
            axes.plot(xs, ys, color=SERIES[i], linestyle=DASHES[i], label=kind)
        legend(axes)
        count_axis(axes, max(most.values()))
        time_axis(axes, max(run.seconds for _, run in _both(comparison)))

    alt = "; ".join(f"{kind}: at most {value}" for kind, value in most.items()) + "."
    title = "Requests in the system, simulated and measured"
    return Plot(f"compared-requests{ending}", title, alt, WIDTH, 190, draw)


def _values(outcomes: Sequence[Outcome], of: Callable[[Outcome], float | None]) -> list[float]:
    values = (of(outcome) for outcome in outcomes if outcome.status == "ok")
    return [value for value in values if value is not None]


def _middle(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return f"the median is {number(percentile(sorted(values), 50))} s"

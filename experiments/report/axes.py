"""Axes: what their scales are, and what is written in and around them."""

from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.report.drawing import Area
from experiments.report.look import SOFT, TEXT_PT


def panels(area: Area, rows: int = 1, *, left: float = 34, top: float = 20) -> list[Axes]:
    """Return axes of equal height above one another that share their x axis."""
    bottom, gap = 30.0, 26.0
    height = (area.height - top - bottom - gap * (rows - 1)) / rows
    found: list[Axes] = []
    for row in range(rows):
        above = top + row * (height + gap)
        below = area.height - above - height
        axes = area.axes(left, 10, below, above, found[0] if found else None)
        axes.tick_params(labelbottom=row == rows - 1)
        found.append(axes)
    return found


def legend(axes: Axes, *, below: bool = False) -> None:
    """Name the lines above the axes: at the right end of the title's line, or in one below it."""
    columns = max(1, len(axes.get_legend_handles_labels()[0]))
    if below:
        axes.set_title(axes.get_title(loc="left"), pad=19)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns)
    else:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1.01), ncols=columns)


def time_axis(axes: Axes, seconds: float) -> None:
    """Let x be seconds from 0, written in the unit that gives the shortest numbers."""
    unit, length = "seconds", 1.0
    for name, size in (("minutes", 60.0), ("hours", 3600.0), ("days", 86400.0)):
        if seconds > 3 * size:
            unit, length = name, size
    end = max(seconds, 1.0)
    axes.set_xlim(0, end)
    step = MaxNLocator(6, steps=[1, 2, 3, 5, 10]).tick_values(0, end / length)
    axes.set_xticks([tick * length for tick in step if 0 <= tick * length <= end])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / length:g}"))
    axes.set_xlabel(f"{unit} from the beginning")


def count_axis(axes: Axes, most: float) -> None:
    """Let y be a number of things, from 0 to a little above ``most``."""
    axes.set_ylim(0, max(1.0, most) * 1.06)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _brief(y)))


def share_axis(axes: Axes, most: float = 1.0) -> None:
    """Let y be a share, written in percent."""
    axes.set_ylim(0, most * 1.02)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y * 100:g}"))


def seconds_axis(axes: Axes, axis: Literal["x", "y"], low: float, high: float) -> None:
    """Let x or y be seconds from low to high: logarithmic where they are far apart."""
    scale: Any = axes.xaxis if axis == "x" else axes.yaxis
    if high / low > 5:
        (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
        scale.set_major_locator(
            LogLocator(subs=(1.0,) if high / low > 300 else (1.0, 2.0, 5.0), numticks=99)
        )
        scale.set_minor_formatter(NullFormatter())
    else:
        scale.set_major_locator(MaxNLocator(5))
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    (axes.set_xlim if axis == "x" else axes.set_ylim)(low, high)


def target_line(
    axes: Axes, axis: Literal["x", "y"], seconds: float | None, *, named: bool = True
) -> None:
    """Draw a target across the axes and name it, if there is one; the axes have their limits."""
    if seconds is None:
        return
    style: dict[str, Any] = {"color": SOFT, "linewidth": 0.8, "linestyle": (0, (2, 2))}
    if axis == "y":
        axes.axhline(seconds, **style)
        return
    axes.axvline(seconds, **style)
    if named:
        left = axes.transLimits.transform(axes.transScale.transform((seconds, 0)))[0] < 0.8
        axes.annotate(
            "target",
            (seconds, axes.get_ylim()[0]),
            (3 if left else -3, 3),
            textcoords="offset points",
            ha="left" if left else "right",
            color=SOFT,
        )


def text_width(text: str) -> float:
    """Return how wide a label is, in points."""
    font = FontProperties(size=TEXT_PT)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def say(axes: Axes, text: str) -> None:
    """Write in the middle of axes that have nothing to show."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT)


def _brief(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"

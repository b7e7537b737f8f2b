"""Drawing: one look for all plots, and files with the same bytes for the same plot.

Figures are made without pyplot: no display is needed, and no global figure stays behind.
"""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.report.needs import Picture
from experiments.report.texts import plain

INK: Final = "#1b2326"
SOFT: Final = "#5d6a6e"
LINE: Final = "#e2e5e3"
GROUND: Final = "#ffffff"
# Okabe and Ito's hues, which most colour-blind people tell apart, darkened until text in them
# can be read on white; the page has lighter ones for dark mode under the same numbers.
SERIES: Final = ("#0072b2", "#c25200", "#007a5a", "#a8487e", "#8f6200", "#5d6a6f")
# So that nothing is told by colour alone.
DASHES: Final[tuple[Any, ...]] = (
    "-",
    (0, (4, 1.2)),
    (0, (1.2, 1.2)),
    (0, (6, 1.2, 1.2, 1.2)),
    (0, (8, 2)),
    (0, (2, 2)),
)
TEXT_PT: Final = 8.0

STYLE: Final[dict[str, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": SOFT,
    "axes.labelpad": 2.0,
    "axes.labelsize": TEXT_PT,
    "axes.linewidth": 0.6,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.titlesize": TEXT_PT,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.dpi": 72.0,
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT_PT,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.0,
    "legend.borderpad": 0.2,
    "legend.columnspacing": 1.0,
    "legend.fontsize": TEXT_PT,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "legend.handletextpad": 0.5,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.3,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "path.simplify": True,
    "svg.fonttype": "none",
    # A dollar in a name is a dollar.
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": SOFT,
    "xtick.labelsize": TEXT_PT,
    "xtick.major.size": 3.0,
    "xtick.major.width": 0.6,
    "xtick.minor.size": 0.0,
    "ytick.color": SOFT,
    "ytick.labelsize": TEXT_PT,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
}


@dataclass(frozen=True, slots=True)
class Area:
    """A part of a figure to draw in.

    Attributes:
        figure: the whole.
        x, y: of the lower left corner, in points from the figure's.
        width, height: in points.
    """

    figure: Figure
    x: float
    y: float
    width: float
    height: float

    def axes(
        self, left: float, right: float, bottom: float, top: float, under: Axes | None = None
    ) -> Axes:
        """Return axes with these margins in points; they share the x axis of those above.

        Fixed margins, since a layout that is fitted to the text takes longer than all the drawing.
        """
        width, height = (float(size) * 72 for size in self.figure.get_size_inches())
        place = (
            (self.x + left) / width,
            (self.y + bottom) / height,
            (self.width - left - right) / width,
            (self.height - bottom - top) / height,
        )
        return self.figure.add_axes(place, sharex=under)

    def name(self, text: str) -> None:
        """Write a name above the area."""
        width, height = (float(size) * 72 for size in self.figure.get_size_inches())
        self.figure.text(
            (self.x + 8) / width,
            (self.y + self.height + 4) / height,
            text,
            fontsize=TEXT_PT + 1.5,
            fontweight="bold",
        )


@dataclass(frozen=True, slots=True)
class Plot:
    """Something to draw.

    Attributes:
        name: of its file, without the ending.
        title: what it shows.
        alt: the same for whoever does not see it, with the figures that matter.
        width, height: in points.
        draw: draws into an empty area of this size.
    """

    name: str
    title: str
    alt: str
    width: float
    height: float
    draw: Callable[[Area], None]


def save(plot: Plot, folder: Path, format: Picture) -> Path:
    """Write the plot on a white ground; returns the file."""
    file = folder / f"{plot.name}.{format}"
    file.write_bytes(_render(plot, format, GROUND, plot.name))
    return file


def inline(plot: Plot, number: int) -> str:
    """Return the plot as an SVG element for a page, with the page's colours and font.

    Args:
        plot: what to draw.
        number: of the plot in its page; keeps its ids apart from other plots'.
    """
    text = _render(plot, "svg", "none", str(number)).decode()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Names of parts that nothing refers to; another plot has the same.
    text = re.sub(r' id="\w+?(\.axis)?_\d+"| transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = re.sub(r'\b(d|transform|x|y|points)="[^"]*"', lambda found: _short(found[0]), text)
    text = text.replace("'DejaVu Sans'", "system-ui, sans-serif")
    for colour, name in _NAMES.items():
        text = text.replace(colour, f"var(--{name})")
    text = re.sub(r">\s+<", "><", text)
    label = plain(plot.alt).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


_NAMES: Final = {INK: "ink", SOFT: "soft", LINE: "line", GROUND: "panel"} | {
    colour: f"series-{i + 1}" for i, colour in enumerate(SERIES)
}


def _short(attribute: str) -> str:
    """Return the attribute with its numbers rounded to a hundredth of a point."""
    return re.sub(
        r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), attribute
    )


def _render(plot: Plot, format: str, ground: str, salt: str) -> bytes:
    metadata = {"Software": None} if format == "png" else {"Date": None, "Creator": None}
    stream = io.BytesIO()
    style: Any = STYLE | {"svg.hashsalt": salt}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # A letter that the font lacks is a box in a PNG; in an SVG the reader's fonts have it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(plot.width / 72, plot.height / 72))
        plot.draw(Area(figure, 0, 0, plot.width, plot.height))
        dpi = 200 if format == "png" else 72
        figure.savefig(stream, format=format, facecolor=ground, metadata=metadata, dpi=dpi)
    return stream.getvalue()


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

"""Drawing: plots, and files with the same bytes for the same plot.

Figures are made without pyplot: no display is needed, and no global figure stays behind.
"""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.look import GROUND, INK, LINE, SERIES, SOFT, STYLE, TEXT_PT
from experiments.report.needs import Picture
from experiments.report.texts import plain


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

"""What a plot shows, by the artists in its figure."""

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from experiments.report.drawing import Area, Plot
from experiments.report.look import STYLE


def figure_of(plot: Plot) -> Figure:
    """Return the figure of a plot, as large as its file."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(plot.width / 72, plot.height / 72))
        plot.draw(Area(figure, 0, 0, plot.width, plot.height))
    return figure


def text_boxes(plot: Plot) -> list[Bbox]:
    """Return where the texts are that are written into a plot's axes, in points."""
    figure = figure_of(plot)
    canvas = FigureCanvasAgg(figure)
    return [
        text.get_window_extent(canvas.get_renderer()) for axes in figure.axes for text in axes.texts
    ]


def cut_dots(plot: Plot) -> list[tuple[float, float]]:
    """Return the dots that the edge of their axes cuts, in the units of the axes."""
    cut: list[tuple[float, float]] = []
    for axes in figure_of(plot).axes:
        box = axes.bbox
        for line in axes.lines:
            if line.get_marker() in ("None", "", None) or not line.get_clip_on():
                continue
            half = line.get_markersize() / 2
            for x, y in line.get_xydata():
                at, up = axes.transData.transform((x, y))
                inside = (
                    box.x0 + half <= at <= box.x1 - half and box.y0 + half <= up <= box.y1 - half
                )
                cut += [] if inside else [(float(x), float(y))]
    return cut

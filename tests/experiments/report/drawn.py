"""What a plot shows, by the artists in its figure."""

from matplotlib.figure import Figure

from experiments.report.drawing import Area, Plot


def figure_of(plot: Plot) -> Figure:
    """Return the figure of a plot, as large as its file."""
    figure = Figure(figsize=(plot.width / 72, plot.height / 72), dpi=72)
    plot.draw(Area(figure, 0, 0, plot.width, plot.height))
    return figure


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

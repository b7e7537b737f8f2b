"""The report as one page of HTML that needs nothing else: no script, no font, no other file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from experiments.report import drawing, gallery
from experiments.report.drawing import Plot
from experiments.report.report import Report
from experiments.report.table import Table
from experiments.report.texts import plain

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class _Figure:
    svg: Markup
    title: str


def render(report: Report) -> str:
    """Return the page."""
    numbers = count(1)
    several = len(report.runs) > 1
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_written,
    )
    environment.globals["parts"] = _parts
    template = environment.from_string((_HERE / "page.html").read_text(encoding="utf-8"))
    loads = list(dict.fromkeys(run.load for run in report.runs))
    return template.render(
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        kinds=" and ".join(dict.fromkeys(run.kind for run in report.runs)),
        loads=loads,
        targets=str(report.targets),
        command=report.command,
        missing=report.missing,
        # As the plots of all runs number them.
        numbers={run.name: i for i, run in enumerate(report.runs, 1)} if several else {},
        runs=report.runs,
        overview=report.overview(),
        details=report.details(),
        settings=report.settings(),
        across=_figures(gallery.across(report), numbers),
        over=_figures(gallery.over(report), numbers),
        walls=[
            (wall.title, _figures(wall.plots, numbers, wall.names if several else None))
            for wall in gallery.walls(report)
        ],
        not_drawn=len(report.runs) - gallery.MOST_RUNS,
    )


def _figures(
    plots: Sequence[Plot], numbers: Iterator[int], names: Sequence[str] | None = None
) -> list[_Figure]:
    titles = [plot.title for plot in plots] if names is None else names
    return [
        # What is drawn escapes its own text.
        _Figure(Markup(drawing.inline(plot, next(numbers))), title)
        for plot, title in zip(plots, titles, strict=True)
    ]


def _parts(table: Table) -> list[list[Sequence[str]]]:
    """Return the rows, those together that begin with the same word."""
    return [list(rows) for _, rows in groupby(table.rows, key=lambda row: row[0])]


def _written(value: object) -> object:
    """Return what a place in the page is filled with: no control characters, wherever from."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

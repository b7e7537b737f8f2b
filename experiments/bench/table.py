"""Rows of measurements, and how they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes:
        what: the thing measured.
        value: the median of its repetitions.
        unit: of the value.
        note: what it should be compared with, or how it was taken.
    """

    what: str
    value: float
    unit: str
    note: str = ""


def as_markdown(rows: Sequence[Row]) -> str:
    """A Markdown table with aligned columns."""
    cells = [("measured", "median", "unit", "note")]
    cells += [(row.what, f"{row.value:,.4g}", row.unit, row.note) for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(4)]
    lines = [_line(cells[0], widths), "|-" + "-|-".join("-" * width for width in widths) + "-|"]
    lines += [_line(line, widths) for line in cells[1:]]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    what, value, unit, note = (
        cell.rjust(width) if i == 1 else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {what} | {value} | {unit} | {note} |"

"""Table: rows of text, and how they are printed in a terminal and in Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from experiments.report.texts import plain


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: in its head.
        unit: of its numbers; empty if they have none.
        text: it holds words, not numbers.
        minor: may be left out where there is little room.
    """

    name: str
    unit: str = ""
    text: bool = False
    minor: bool = False

    @property
    def head(self) -> str:
        """Its name, and the unit behind a comma."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads.

    Attributes:
        title: what it shows.
        columns: from left to right.
        rows: a cell for each column.
        note: to be read under it; may be empty.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def as_markdown(self) -> str:
        """Return the table alone, its columns aligned."""
        cells = [[_cell(column.head) for column in self.columns]]
        cells += [[_cell(text) for text in row] for row in self.rows]
        widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(self.columns))]
        rule = [
            "-" * width if column.text else "-" * (width - 1) + ":"
            for width, column in zip(widths, self.columns, strict=True)
        ]
        lines = [
            [
                cell.ljust(width) if column.text else cell.rjust(width)
                for cell, width, column in zip(row, widths, self.columns, strict=True)
            ]
            for row in cells
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))

    def as_rich(self) -> rich.table.Table:
        """Return the table for a terminal, the title above and the note under it."""
        table = rich.table.Table(
            title=Text(self.title, style="bold"),
            title_justify="left",
            caption=Text(self.note) if self.note else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for i, column in enumerate(self.columns):
            cells = [plain(row[i]) for row in self.rows]
            # Words may be broken into lines, but no number: half of one would be another.
            table.add_column(
                Text(column.head if column.text else _wrapped(column.head, cells)),
                justify="left" if column.text else "right",
                vertical="bottom",
                overflow="fold",
                no_wrap=not column.text,
            )
        for row in self.rows:
            # Text, so that brackets in a name are no markup.
            table.add_row(*(Text(plain(cell)) for cell in row))
        return table

    def turned(self) -> "Table":
        """Return the table with its rows as columns, under the first column's words."""
        first, *others = self.columns
        columns = [Column(first.name, text=True), *(Column(row[0]) for row in self.rows)]
        rows = [[column.head, *(row[i] for row in self.rows)] for i, column in enumerate(others, 1)]
        return Table(self.title, columns, rows, self.note)

    def show(self, console: Console) -> None:
        """Print the table as the terminal has room for it; into a pipe in Markdown, whole."""
        if not console.is_terminal:
            lines = [f"**{self.title}**", self.as_markdown(), self.note]
            console.print(*filter(None, lines), sep="\n\n", end="\n\n", soft_wrap=True,
                          markup=False, highlight=False)  # fmt: skip
            return
        console.print(self._fitting(console).as_rich())

    def _fitting(self, console: Console) -> "Table":
        """Return the table, or what is left of it, in the fullest form that fits."""
        forms = [self, self.turned(), self]
        while any(column.minor for column in forms[-1].columns):
            forms.append(forms[-1].lesser())
        return next((form for form in forms if form.fits(console)), forms[-1])

    def lesser(self) -> "Table":
        """Return the table without its last minor column."""
        last = max(i for i, column in enumerate(self.columns) if column.minor)
        rows = [[cell for i, cell in enumerate(row) if i != last] for row in self.rows]
        columns = [column for i, column in enumerate(self.columns) if i != last]
        return Table(self.title, columns, rows, self.note)

    def fits(self, console: Console) -> bool:
        """Whether the console shows it without a break within a word."""
        wide = console.options.update(width=10_000)
        return Measurement.get(console, wide, self.as_rich()).minimum <= console.width


def _wrapped(head: str, cells: Sequence[str]) -> str:
    """Return the head in lines no wider than what is under it, if its words allow."""
    return textwrap.fill(head, max(map(len, [*cells, *head.split()])), break_on_hyphens=False)


def _cell(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace("|", "\\|")

"""Table: the same cells in a terminal and in Markdown, whatever is in them."""

import io

from rich.console import Console

from experiments.report.table import Column, Table

TABLE = Table(
    "A title",
    [Column("Run", text=True), Column("Time to first token", "s"), Column("Busy", minor=True)],
    [["fast_one, 4", "0.123", "12,345"], ["[bold]|x", "1.00", "7"]],
    "A note.",
)


def shown(width: int, table: Table = TABLE) -> str:
    stream = io.StringIO()
    table.show(Console(file=stream, width=width, force_terminal=True, color_system=None))
    return stream.getvalue()


def test_markdown_is_aligned_and_bars_are_escaped() -> None:
    assert TABLE.as_markdown().splitlines() == [
        "| Run         | Time to first token, s |   Busy |",
        "| ----------- | ---------------------: | -----: |",
        "| fast_one, 4 |                  0.123 | 12,345 |",
        "| [bold]\\|x   |                   1.00 |      7 |",
    ]


def test_a_pipe_gets_markdown_whole() -> None:
    stream = io.StringIO()
    TABLE.show(Console(file=stream, width=20))
    assert stream.getvalue() == f"**A title**\n\n{TABLE.as_markdown()}\n\nA note.\n\n"


def test_a_terminal_gets_words_as_they_are() -> None:
    text = shown(100)
    assert "[bold]|x" in text  # no markup
    assert "A note." in text


def test_numbers_are_never_broken_and_minor_columns_go_first() -> None:
    for width in range(26, 60):
        text = shown(width)
        assert "0.123" in text
        assert "1.00" in text
        assert "Busy" not in text or "12,345" in text
    assert "Busy" not in shown(26)
    assert "Busy" in shown(60)


def test_words_make_room_for_numbers() -> None:
    columns = [Column("Run", text=True), *(Column(f"a longer head {i}") for i in range(8))]
    rows = [[f"a run with quite a long name {k}", *["1,234,567"] * 8] for k in range(9)]
    for width in range(104, 120):
        assert shown(width, Table("T", columns, rows)).count("1,234,567") == 72, width


def test_a_table_that_is_too_wide_is_turned_if_that_fits() -> None:
    wide = Table("T", [Column("Run", text=True)] + [Column(f"c{i}") for i in range(20)],
                 [["one", *["123,456"] * 20]])  # fmt: skip
    lines = shown(40, wide).splitlines()
    assert sum("123,456" in line for line in lines) == 20

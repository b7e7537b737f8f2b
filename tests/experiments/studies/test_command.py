"""The command: what it prints, what it writes and what it refuses."""

from pathlib import Path

import pytest

from experiments.studies import command
from experiments.studies.command import main

QUICK = ["priorities", "--quick", "--seeds", "1"]


def test_it_prints_tables_and_updates_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "priorities.md"
    page.write_text("Mine.\n\n<!-- made: ttft -->\nold\n<!-- end: ttft -->\n\nToo.\n")
    assert main([*QUICK, "--out", str(tmp_path)]) == 0
    assert "| aging, 10 s |" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("Mine.\n\n<!-- made: ttft -->\n\n| load")
    assert "\n\nToo.\n" in text
    assert "old" not in text
    assert str(tmp_path) not in text
    for plot in tmp_path.glob("*.svg"):
        assert f"({plot.name})" in text
        assert plot.stat().st_size < 150_000
    assert len(list(tmp_path.glob("*.svg"))) == text.count("![")


@pytest.mark.parametrize(
    ("out", "told"), [("mine/here", "mine/here"), ("/where/ever", "docs/experiments")]
)
def test_a_page_says_the_command_that_made_it(out: str, told: str) -> None:
    # Guards against: a command that writes elsewhere, and a path of one machine in a page.
    options = command.parser().parse_args([*QUICK, "--out", out])
    made = "tidegate study priorities --seeds 1 --quick"
    assert command._command(options) == f"{made} --out {told}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["placement"], "placement reads 2 traces, not 0: Traces: Azure's"),
        (["placement", "--trace", "poisson:rate=1", "x"], "seconds of poisson must be given"),
        (["placement", "--trace", "nowhere.csv", "x"], "nowhere.csv"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("seeds", ["0", "x", "1001"])
def test_seeds_have_limits(seeds: str) -> None:
    with pytest.raises(SystemExit):
        main(["placement", "--seeds", seeds])

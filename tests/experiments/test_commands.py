"""How commands end: what went wrong is one line, and an exit code."""

from collections.abc import Callable

import pytest

from experiments.arguments import CombinationError
from experiments.commands import Command
from experiments.loads.errors import SpecError
from experiments.report.needs import MissingLibrary


def work(ends: BaseException | int) -> Callable[[], int]:
    def do() -> int:
        if isinstance(ends, BaseException):
            raise ends
        return ends

    return do


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (0, 0, ""),
        (130, 130, ""),
        (CombinationError("--a needs --b"), 2, "tidegate try: --a needs --b\n"),
        (SpecError("rate must be given"), 1, "tidegate try: rate must be given\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "tidegate try: x: No such file\n"),
        (OSError("disk full"), 1, "tidegate try: a file: disk full\n"),
        (KeyboardInterrupt(), 130, "tidegate try: stopped\n"),
    ],
    ids=repr,
)
def test_an_end_is_a_line_and_a_code(
    ends: BaseException | int, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Command("tidegate try").run(work(ends), "stopped") == code
    assert capsys.readouterr().err == said


def test_a_library_that_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    missing = MissingLibrary("parquet needs polars")
    assert Command("tidegate try").run(work(missing), "stopped") == 1
    assert capsys.readouterr().err == f"tidegate try: {missing}\n"


def test_what_is_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        Command("tidegate try").run(work(ZeroDivisionError()), "stopped")

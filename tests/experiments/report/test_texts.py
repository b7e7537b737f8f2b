"""Texts: numbers as a reader wants them, and none that says more than is so."""

import pytest

from experiments.report.texts import count, milliseconds, number, plain, setting, share


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0.0, "0"), (0.00012, "0.0001"), (0.0494, "0.049"), (0.9996, "1.00"),
    (1.234, "1.23"), (9.996, "10.0"), (12.34, "12.3"), (99.96, "100"), (12345.6, "12,346"),
    (30.0, "30"),
])  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0.0, "0%"), (1.0, "100%"), (0.5, "50.0%"), (0.0001, "<0.1%"), (0.99999, ">99.9%"),
])  # fmt: skip
def test_all_and_none_are_only_said_of_exactly_that(value: float | None, text: str) -> None:
    assert share(value) == text


def test_counts_and_milliseconds() -> None:
    assert (count(1234), count(1234.0), count(0.25), count(None)) == (
        "1,234",
        "1,234",
        "0.250",
        "-",
    )
    assert milliseconds(0.0123) == "12.3"


def test_settings_are_written_as_in_a_command_line() -> None:
    assert [setting(x) for x in (None, True, 0.0005, 8, "x")] == ["-", "on", "0.0005", "8", "x"]


def test_control_characters_go_and_letters_stay() -> None:
    assert plain("a\x00b\x1b[1m\ud800 π 名 👩") == "a�b�[1m� π 名 👩"

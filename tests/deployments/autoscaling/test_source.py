"""A policy's text is run as a file is, and says what is wrong with it in one line."""

import sys
import traceback
from types import ModuleType

import pytest

from deployments.autoscaling.source import PolicyError, Source


def defined(text: str, name: str = "mine") -> object:
    return Source("/folder/my.py", name, text).define()


def test_it_is_run_anew_each_time() -> None:
    """Two simulations must not share what a policy remembers in its module."""
    source = Source("my.py", "seen", "seen = []")
    first, second = source.define(), source.define()
    assert first == second == []
    assert first is not second


def test_dataclasses_with_postponed_annotations_find_their_module() -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    assert isinstance(defined(f"{text}@dataclass\nclass mine:\n    a: int\n"), type)


def test_a_traceback_shows_the_line_of_a_file_that_is_not_there() -> None:
    function = defined("def mine():\n    return 1 / 0  # oh\n")
    assert callable(function)
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    shown = "".join(traceback.format_exception(caught.value))
    assert 'File "/folder/my.py", line 2, in mine' in shown
    assert "return 1 / 0  # oh" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines no mine"),
        ("a = 1\nb = (\n", "line 2: '(' was never closed"),
        ("a = 1\n\nb = 1 / 0", "raises ZeroDivisionError in line 3: division by zero"),
        ("def f():\n    exit(3)\nf()", "raises SystemExit in line 2: 3"),
        ("import nothing_of_that_name", "raises ModuleNotFoundError in line 1: No module named"),
        ("a = '\0'", "null bytes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        defined(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_given_modules_are_found_whatever_is_installed_and_others_as_ever() -> None:
    given = ModuleType("json.tool")
    vars(given)["answer"] = 42
    text = """
import json.tool
import json.tool as tool
import math
from json.tool import answer
def mine():
    from json.tool import answer as later
    return [answer, later, tool.answer, json.tool.answer, math.floor(1.5)]
"""
    function = Source("my.py", "mine", text).define({"json.tool": given})
    assert callable(function)
    assert function() == [42, 42, 42, 42, 1]
    assert sys.modules["json"].__name__ == "json"


def test_a_module_is_imported() -> None:
    assert Source("json", "dumps", None).define() is __import__("json").dumps
    for path in ("nothing_of_that_name", "json.nothing_of_that_name"):
        with pytest.raises(PolicyError, match="there is no such module"):
            Source(path, "x", None).define()
    with pytest.raises(PolicyError, match="defines no x"):
        Source("json", "x", None).define()

"""The comparison of the grammar libraries runs with whichever are there."""

import importlib.util
from pathlib import Path

import pytest

from experiments.guidance.command import main


def test_what_is_missing_is_said_and_llguidance_gets_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "xgrammar" else there(name)
    )
    out = tmp_path / "results.md"
    assert main(["--walks", "1", "--out", str(out)]) == 0
    text = out.read_text()
    assert "xgrammar is not installed." in text
    _, _, own = text.partition("## llguidance")
    assert "- nothing" in own
    assert "Taken: nothing." in own

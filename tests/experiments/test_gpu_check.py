"""The script for machines with a GPU, in Triton's interpreter: every part runs, and says so."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.gpu_check import Report

pytest.importorskip("triton")
SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu_check.py"
# What the machines lack that it is for.
ABSENT = ("ray", "fastapi", "llguidance", "pydantic", "psutil", "gguf", "accelerate")


def test_every_part_runs_without_the_rest_of_the_product(tmp_path: Path) -> None:
    hide = "; ".join(f"sys.modules[{name!r}] = None" for name in ABSENT)
    run = (
        f"import sys, runpy; {hide}; del sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')"
    )
    command = [sys.executable, "-c", run, str(SCRIPT)]
    command += ["--device", "cpu", "--tiny", "--write", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "gpu_check.json").read_text())
    assert not told["failed"]
    assert len(told["parts"]) == 10
    assert all("result" in part for part in told["parts"])
    assert "tokens/s" in (tmp_path / "gpu_check.md").read_text()


@pytest.fixture
def seconds() -> Iterator[float]:
    return iter([0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 50.5])


def test_a_part_that_fails_or_comes_too_late_leaves_the_others(seconds: Iterator[float]) -> None:
    report = Report(lambda: next(seconds), 30.0)

    def fails() -> dict[str, int]:
        raise MemoryError("no room")

    assert report.part("bad", fails) is None
    assert report.part("good", lambda: {"found": 3}) == {"found": 3}
    assert report.part("late", lambda: {"found": 4}) is None
    assert report.failed
    text = "\n".join(report.markdown())
    assert "FAILED: MemoryError: no room" in text
    assert "- found: 3" in text
    assert "Skipped: 30 s are over" in text

"""The script for machines with a GPU, in Triton's interpreter: every part runs, and says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.gpu.report import Overseer, markdown

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


CHILD = """
import os, sys
from pathlib import Path
from experiments.gpu.report import Part, Worker

def dies():
    os._exit(7)

def spoils():
    raise MemoryError("no room")

def hangs():
    import time
    time.sleep(60)

parts = [Part("good", lambda: {"found": [3, 0.25]}), Part("bad", dies), Part("full", spoils),
         Part("also good", lambda: {"found": 4}), Part("slow", hangs), Part("last", lambda: {})]
sys.exit(not Worker(Path(sys.argv[1])).run(parts, int(sys.argv[2]), lambda error: True))
"""


def test_parts_go_on_in_a_new_process_after_one_that_dies_hangs_or_spoils_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1]))
    notes = tmp_path / "notes"
    now = 0.0

    def clock() -> float:
        """Time passes only while the part that hangs is the newest."""
        nonlocal now
        if notes.exists() and notes.read_text().splitlines()[-1:] == ['{"part": "slow"}']:
            now += 10.0
        return now

    overseer = Overseer(notes, [sys.executable, "-c", CHILD, str(notes)], 1e9, 30.0, clock)
    parts = overseer.run()
    assert [part["part"] for part in parts] == ["good", "bad", "full", "also good", "slow", "last"]
    assert [part.get("error") for part in parts] == [
        None,
        "the process ended with 7",
        "MemoryError: no room",
        None,
        "the process ended with no news in 30 s",
        None,
    ]
    assert capsys.readouterr().out.count("\n") == 6
    text = markdown(parts, ["never"])
    assert "FAILED: MemoryError: no room" in text
    assert "- found: 0.25" in text
    assert "- never" in text


def test_what_was_not_begun_in_time_is_told(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert Overseer(notes, slow, 0.0, 60.0).run() == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_is_told_so_once() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 1
    assert done.stdout.count("torch finds no GPU here") == 1

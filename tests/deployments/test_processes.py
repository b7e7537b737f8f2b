"""deployments.processes: what a run started is found, however it disguises itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deployments import processes
from tests.deployments.conftest import eventually

# Opens a log, says that it is ready, and ends with its standard input.
_CHILD = "import sys; {setup}; log = open(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"
_TITLE = "from ray._raylet import setproctitle; setproctitle('ray::DashboardAgent')"


@pytest.fixture(params=["pass", _TITLE], ids=["plain", "titled"])
def child(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A marked process, as it is or with a title of its own; its mark and its pid."""
    mark = processes.new_mark()
    log = processes.make_folder(mark, tmp_path) / "log"
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(setup=request.param), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, processes.MARK: mark},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    yield mark, process.pid
    process.stdin.close()
    process.stdout.close()
    process.wait(10)


def test_a_marked_process_is_found_whatever_its_title(child: tuple[str, int]) -> None:
    """A title overwrites the environment: Ray's agents outlived their run by a minute."""
    mark, pid = child
    assert [process.pid for process in processes.find(mark)] == [pid]
    assert processes.find(mark, ours=(pid,)) == []
    assert processes.find(mark[:-1]) == []
    assert processes.find(processes.new_mark()) == []


def test_children_are_found_by_name_and_seen_to_end(child: tuple[str, int]) -> None:
    _, pid = child
    process = psutil.Process(pid)
    assert process in processes.children(["no such name", process.name()])
    assert processes.children(["no such name"]) == []
    assert not processes.has_ended(process)
    process.kill()
    # A zombie, until the fixture takes note of it.
    eventually(lambda: processes.has_ended(process))


def test_a_child_is_ended_by_the_script_that_it_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; sys.stdin.read()")
    command = [sys.executable, str(tmp_path / "mine.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        processes.end_child("ine.py")
        assert process.poll() is None
        processes.end_child("mine.py")
        assert process.wait(10) != 0


def test_marked_processes_are_ended(child: tuple[str, int]) -> None:
    mark, _ = child
    assert processes.end(mark, grace_s=0.0) >= 1
    assert processes.find(mark) == []

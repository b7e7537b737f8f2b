"""Starting on this machine, as far as it can be seen without Ray."""

import contextlib
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.config import ServeConfig
from deployments.failures import LaunchError, RayDied, StartFailed
from deployments.launch import LocalCluster, free_ports, last_line, url, wait_ready
from deployments.processes import find
from tests.deployments.conftest import eventually


class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def healthy() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Well) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_this_machine_is_not_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In many offices http_proxy is set: the server ran, and its start was called a failure."""
    (dead,) = free_ports(1)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{dead}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with healthy() as port:
        wait_ready(ServeConfig(port=port), timeout_s=5)


def test_who_does_not_answer_is_not_waited_for_for_ever() -> None:
    (dead,) = free_ports(1)
    with pytest.raises(StartFailed, match=r"does not answer after 0\.1 s"):
        wait_ready(ServeConfig(port=dead), timeout_s=0.1)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("fe80::2", "http://[fe80::2]:8000"),
        ("box.example", "http://box.example:8000"),
    ],
)
def test_the_address_is_one_that_a_client_takes(host: str, address: str) -> None:
    assert url(ServeConfig(host=host)) == address


@pytest.mark.parametrize(
    ("error", "asked", "kept"),
    [
        (StartFailed("no"), False, True),
        (RayDied(1, "raylet"), False, True),
        (LaunchError("no"), False, False),
        (None, False, False),
        (None, True, True),
    ],
)
def test_the_logs_stay_if_something_failed_or_they_are_asked_for(
    error: Exception | None, asked: bool, kept: bool
) -> None:
    """The line on the terminal says what went wrong; why is in the logs."""
    cluster = LocalCluster(keep_logs=asked)
    with contextlib.suppress(LaunchError), cluster:
        (cluster.folder / "log").write_text("why")
        if error is not None:
            raise error
    left = [file.name for file in cluster.folder.glob("log")]
    assert left == (["log"] if kept else [])
    assert cluster.folder.exists() is kept
    shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.mark.parametrize("kept", [False, True])
def test_whoever_is_killed_leaves_its_logs_if_they_are_asked_for_and_no_process(kept: bool) -> None:
    # The child outlives it: what it reads ends with this test.
    program = (
        "import subprocess, sys\n"
        "from deployments.launch import LocalCluster\n"
        f"with LocalCluster(keep_logs={kept}) as cluster:\n"
        "    subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "    print(cluster.folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        mark = folder.name.removeprefix("tg-")
        (child,) = eventually(lambda: find(mark), 10)
        assert child.pid != process.pid
        process.kill()
        process.wait(10)
        eventually(lambda: not find(mark), 10)
    if kept:
        assert folder.exists()
        shutil.rmtree(folder)
    else:
        eventually(lambda: not folder.exists(), 10)


def test_a_traceback_boils_down_to_what_was_raised() -> None:
    text = (
        "Traceback:\n  File x\nValueError: inner\n\x1b[36mray.exceptions.RayError: outer\x1b[0m\n"
    )
    assert last_line(text) == "RayError: outer"
    assert last_line("  \n") == "no reason given"

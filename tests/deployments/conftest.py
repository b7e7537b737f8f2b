"""Servers as a person starts them: the command line in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deployments.launch import free_ports
from deployments.processes import MARK, find
from tests.deployments.collector import Collector

START_TIMEOUT_S = 150.0
API_KEY = "sk-test-123"
HERMES_FILE = Path(__file__).parents[1] / "data" / "hermes.jinja"


def plain_environment() -> dict[str, str]:
    """What a person's shell has: nothing of a cluster that the tests themselves run."""
    skip = ("RAY_SERVE_", "TIDEGATE_API_KEY", MARK)
    return {k: v for k, v in os.environ.items() if not k.startswith(skip)}


class Server:
    """``tidegate serve`` with some flags and environment variables, ready to be used."""

    def __init__(self, *flags: str, **variables: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "deployments.cli", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=plain_environment() | variables,
            # A process group of its own, so that a test can press Ctrl-C on it. Not a session:
            # Linux shares a busy machine out by sessions, and the test would wait for seconds.
            process_group=0,
        )
        self.output = ""
        try:
            self._await_greeting()
        except BaseException:
            self.stop()
            raise
        self.mark = psutil.Process(self._gcs().pid).environ()[MARK]

    def _await_greeting(self) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        for line in self.process.stdout:
            self.output += line
            if "curl http" in line:
                return
            if time.monotonic() > deadline:
                break
        raise RuntimeError(f"the server did not start:\n{self.output}")

    def _gcs(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if "gcs_server" in child.name())

    def processes(self, kind: str = "") -> list[psutil.Process]:
        """The run's processes; ``kind`` is a deployment's name, or how another's title begins."""
        found = find(self.mark, (self.process.pid,))
        if not kind:
            return found
        prefixes = (f"ray::ServeReplica:tidegate:{kind}", kind)
        return [one for one in found if _title(one).startswith(prefixes)]

    @property
    def logs(self) -> Path:
        """Where the run's logs are; they go when it stops."""
        return Path(self.output.split("(logs: ")[1].split(";")[0]).resolve()

    def metrics(self) -> dict[str, float]:
        """The page's samples by name and labels, without the prefix and the model's name."""
        return samples(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def total(self, name: str) -> float:
        """The sum over all series of a metric."""
        return sum(v for k, v in self.metrics().items() if k.startswith(f"{name}{{"))

    def idle(self) -> bool:
        """Nothing runs, nothing waits, all blocks are free."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(self.total(name) == 0 for name in names)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(30)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


def _title(process: psutil.Process) -> str:
    """What a process calls itself, or its program's name and arguments; empty if it is gone."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return " ".join([Path(command[0]).name, *command[1:]]) if command else ""


def samples(page: str) -> dict[str, float]:
    """Read a metrics page: samples by name and labels, without prefix and model's name."""
    found = {}
    for line in page.splitlines():
        if line.startswith("tidegate:"):
            name, value = line.removeprefix("tidegate:").rsplit(" ", 1)
            before, _, labels = name.partition("{")
            rest = ",".join(p for p in labels[:-1].split(",") if "model_name" not in p)
            found[f"{before}{{{rest}}}"] = float(value)
    return found


def eventually(check: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Wait for a condition, never for a time; an error of the check counts as not yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if result := check():
                return result
            last: Exception | None = None
        except Exception as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s") from last
        time.sleep(0.02)


@pytest.fixture(scope="session")
def small_pools(demo_model_dir: Path) -> Iterator[Server]:
    """The demo model on two replicas whose pools of 48 blocks are soon full.

    Its chat template is the model's own, with tools.
    """
    flags = ("--replicas", "2", "--num-blocks", "48", "--threads", "1")
    server = Server(*flags, "--chat-template", str(HERMES_FILE))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def traces() -> Iterator[Collector]:
    """What takes the traces of ``short_queues``."""
    with Collector().running() as collector:
        yield collector


@pytest.fixture(scope="session")
def short_queues(tiny_model_dir: Path, traces: Collector) -> Iterator[Server]:
    """A tiny model on two replicas, hardly any room to wait, and a key; it tells all it can."""
    flags = ("--max-waiting", "1", "--max-queued", "2", "--max-num-seqs", "2")
    server = Server(
        *(str(tiny_model_dir), *flags, "--num-blocks", "64", "--block-size", "4"),
        *("--served-model-name", "tiny", "--threads", "1", "--max-body-bytes", "4096"),
        *("--log-format", "json", "--log-requests", "--vllm-metrics"),
        *("--otlp-endpoint", f"http://127.0.0.1:{traces.server_port}"),
        TIDEGATE_API_KEY=API_KEY,
        OTEL_BSP_SCHEDULE_DELAY="100",
    )
    yield server
    server.stop()

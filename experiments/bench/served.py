"""``tidegate serve`` in processes of its own, and the CPU time that they use."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import httpx
import psutil

from deployments.launch import free_ports

START_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 60.0

Used: TypeAlias = Mapping[tuple[str, int, int], int]
"""CPU time so far, in nanoseconds, by part, process and thread."""

PARTS = ("HAProxy", "Gateway", "Router", "Replica")
"""What a request's tokens pass through, as `Served.used` names it."""


class Served:
    """A server that runs.

    Args:
        url: where.
        process: that was started; the others descend from it.
    """

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.url = url
        self._process = process
        self._parts = [
            (part, one.pid)
            for one in process.children(recursive=True)
            if (part := _part(one)) is not None
        ]

    def used_s(self) -> float:
        """Return the CPU seconds that all processes of the server have used so far."""
        total = 0.0
        for one in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system
        return total

    def used(self) -> Used:
        """Return the CPU time that each thread has used so far."""
        times = {}
        for part, pid in self._parts:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    spent = int((thread / "schedstat").read_text().split()[0])
                    times[part, pid, int(thread.name)] = spent
        return times


def engine_threads(before: Used, after: Used) -> frozenset[int]:
    """Return the threads of the engines: in each replica the one that computed most."""
    busiest: dict[int, tuple[int, int]] = {}
    for key, spent in after.items():
        part, pid, thread = key
        if part == "Replica":
            own = (spent - before.get(key, 0), thread)
            busiest[pid] = max(own, busiest.get(pid, own))
    return frozenset(thread for _, thread in busiest.values())


def used_by_parts(before: Used, after: Used, without: frozenset[int]) -> dict[str, int]:
    """Return the CPU nanoseconds of each part between two readings, some threads left out."""
    total = dict.fromkeys(PARTS, 0)
    for key, spent in after.items():
        part, _, thread = key
        if thread not in without:
            total[part] += spent - before.get(key, 0)
    return total


@contextlib.contextmanager
def serve(model: str | None, *flags: str) -> Iterator[Served]:
    """Start ``tidegate serve`` on a free port; it ends with the context.

    Raises:
        RuntimeError: it does not start.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "deployments.cli", "serve", *([model] if model else [])]
    command += ["--port", str(port), *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield Served(_wait_ready(process, log), psutil.Process(process.pid))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"http://[\w.]+:\d+", log.read_text()):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{found[0]}/health").status_code == 200:
                    return found[0]
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")


def _part(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error):
        if "haproxy" in process.name():
            return "HAProxy"
        if found := re.match(r"ray::ServeReplica:\w+:(\w+)", " ".join(process.cmdline())):
            return found[1]
    return None

"""Finding and ending the processes that a run started, however it ended.

Every process that Ray starts inherits the environment of the command that started Ray, so
a mark in the environment finds them all, also those whose parent is gone. (Ray's own
clean-up misses some when it is killed: HAProxy and the node's agents stay.)
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "TIDEGATE_RUN"


def new_mark() -> str:
    """Return a value for ``MARK`` that no other run has."""
    return secrets.token_hex(8)


def find(mark: str, ours: Iterable[int] = ()) -> list[psutil.Process]:
    """Return the live processes that carry the mark, except those with pids in ``ours``."""
    skip = set(ours)
    found = []
    for process in psutil.process_iter():
        if process.pid in skip:
            continue
        try:
            if _carries(process, mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone, or someone else's
    return found


def _carries(process: psutil.Process, mark: str) -> bool:
    """Whether the process started with the mark in its environment."""
    block = Path(f"/proc/{process.pid}/environ")
    if not block.exists():
        return process.environ().get(MARK) == mark
    # Not psutil: it stops at the first empty entry, and a process that gives itself a title,
    # as Ray's do, overwrites the first entries.
    return f"{MARK}={mark}".encode() in block.read_bytes().split(b"\0")


def end(mark: str, grace_s: float, ours: Iterable[int] = ()) -> int:
    """End all marked processes: they get ``grace_s`` seconds, then SIGKILL.

    Returns:
        How many had to be killed.
    """
    ours = tuple(ours)
    deadline = time.monotonic() + grace_s
    while (left := find(mark, ours)) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = 0
    while left := find(mark, ours):
        for process in left:
            try:
                process.send_signal(signal.SIGKILL)
                killed += 1
            except psutil.Error:
                continue
        time.sleep(0.05)
    return killed


def start_reaper(mark: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a process that outlives this one, ends what it leaves and removes ``folder``.

    It holds the read end of a pipe: when this process ends, be it by SIGKILL, the pipe
    closes. Write to its stdin to say that there is nothing left to do.
    """
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    return subprocess.Popen(
        [sys.executable, "-m", "deployments.processes", mark, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def _reap(mark: str, folder: str) -> None:
    if not sys.stdin.buffer.read(1):
        end(mark, grace_s=3.0)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _reap(sys.argv[1], sys.argv[2])

"""Finding and ending the processes that a run started, however it ended.

Every process that Ray starts inherits the environment of the command that started Ray, so
a mark in the environment finds them, also those whose parent is gone. A process that gives
itself a title overwrites its environment, as Ray's do; those have a log open in the run's
folder, whose name holds the mark too. (Ray's own clean-up misses some when it is killed:
HAProxy and the node's agents stay.)
"""

import contextlib
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
    return secrets.token_hex(4)


def make_folder(mark: str, parent: Path) -> Path:
    """Make the run's folder, which only its owner may read."""
    folder = parent / _folder_name(mark)
    folder.mkdir(mode=0o700)
    return folder


def _folder_name(mark: str) -> str:
    return f"tg-{mark}"


def find(mark: str, ours: Iterable[int] = ()) -> list[psutil.Process]:
    """Return the live processes of the run, except those with pids in ``ours``."""
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
    """Whether the process has the mark in its environment, or a file of the run open."""
    proc = Path(f"/proc/{process.pid}")
    if not proc.exists():  # not Linux
        return process.environ().get(MARK) == mark
    # Not psutil's: it stops at the first entry that was overwritten.
    if f"{MARK}={mark}".encode() in (proc / "environ").read_bytes().split(b"\0"):
        return True
    folder = f"/{_folder_name(mark)}/"
    for file in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if folder in os.readlink(file):
                return True
    return False


def children(names: Iterable[str]) -> list[psutil.Process]:
    """Return this process's children, and theirs, that have one of these names."""
    found = psutil.Process().children(recursive=True)
    wanted = set(names)
    return [process for process in found if process.name() in wanted]


def end_child(script: str) -> None:
    """End those of this process's children that run this Python script, if any do."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(word.endswith(f"/{script}") for word in child.cmdline()):
                child.terminate()


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, also if nobody has taken note of it yet."""
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


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


def start_reaper(mark: str, folder: Path | None) -> "subprocess.Popen[bytes]":
    """Start a process that outlives this one, ends what it leaves and removes ``folder``, if any.

    It holds the read end of a pipe: when this process ends, be it by SIGKILL, the pipe
    closes. Write to its stdin to say that there is nothing left to do.
    """
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    return subprocess.Popen(
        [sys.executable, "-m", "deployments.processes", mark, *([str(folder)] if folder else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def _reap(mark: str, *folders: str) -> None:
    if not sys.stdin.buffer.read(1):
        end(mark, grace_s=3.0)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _reap(*sys.argv[1:])

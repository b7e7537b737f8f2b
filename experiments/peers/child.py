"""Child: a peer in a process of its own that answers when it is asked."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

# vLLM's workers spin for a second after their last call, OpenMP's threads for less.
_IDLE_SHARE, _LOOK_S, _SETTLE_S = 0.1, 0.2, 20.0
_CLOSE_S = 30.0


class PeerFailed(RuntimeError):
    """A peer did not start, did not answer, or said why it could not.

    Attributes:
        name: of the peer.
        reason: what it said, or how it ended.
        output: the end of what it wrote to stderr.
    """

    def __init__(self, name: str, reason: str, output: str) -> None:
        super().__init__(name, reason, output)
        self.name = name
        self.reason = reason
        self.output = output

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}\n{self.output}".rstrip()


class Child:
    """A process that speaks :mod:`experiments.peers.answering`, and its own children.

    Args:
        name: for errors.
        command: what is started; it gets a session of its own.
        variables: its whole environment.
        log: file for its stderr.
    """

    def __init__(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        self._said: queue.Queue[str | None] = queue.Queue()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(variables),
                text=True,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ready(self, timeout_s: float) -> dict[str, str]:
        """Wait until it has loaded; return the versions of what it loaded.

        Raises:
            PeerFailed: it ended or took longer.
        """
        versions: dict[str, str] = self._next(timeout_s)["versions"]
        return versions

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            PeerFailed: it ended, took longer, or said that it could not.
        """
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(request) + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise self.failed("it has ended") from None
        said = self._next(timeout_s)
        if "error" in said:
            raise self.failed(str(said["error"]))
        return said

    def failed(self, reason: str) -> PeerFailed:
        """The error to raise when it did not do what it was asked."""
        return PeerFailed(self.name, reason, self._log.read_text(errors="replace")[-2000:])

    def cpu_s(self) -> float:
        """Seconds of CPU that it and its children have used."""
        total = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def settle(self) -> None:
        """Wait until its threads have stopped spinning.

        Raises:
            PeerFailed: they do not, so nobody else could be measured beside it.
        """
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            used, begin = self.cpu_s(), time.monotonic()
            time.sleep(_LOOK_S)
            share = (self.cpu_s() - used) / (time.monotonic() - begin)
            # On a busy machine one that spins may get little of a core, but wants one.
            if share < _IDLE_SHARE and not self._wants_a_core():
                return
        raise self.failed(f"it is still busy {_SETTLE_S:.0f} s after its answer")

    def close(self) -> None:
        """End it, and whatever it has started and left."""
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            pipe.close()
            self._process.wait(_CLOSE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()

    def _wants_a_core(self) -> bool:
        """Whether a thread of it, or of its children, runs or waits for a core."""
        for process in self._tree():
            for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
                with contextlib.suppress(OSError):
                    # The state follows the name, which may hold anything, in parentheses.
                    if stat.read_text().rpartition(") ")[2].startswith("R"):
                        return True
        return False

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _listen(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        with pipe:
            for line in pipe:
                self._said.put(line)
        self._said.put(None)

    def _next(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._said.get(timeout=timeout_s)
        except queue.Empty:
            raise self.failed(f"no answer in {timeout_s:g} s") from None
        if line is None:
            status = self._process.wait()
            raise self.failed(f"it ended with status {status}")
        said: dict[str, Any] = json.loads(line)
        return said

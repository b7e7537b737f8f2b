"""Run the tests that start servers in two processes, the others in two beside them, and mypy.

Servers mostly wait, for processes to start and for each other. Takes what pytest takes, for
all. What the first process says is printed at once, what the others say when they have ended,
each in one piece; the last line counts all tests. Fails if any does.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

_FIRST, _SECOND = "cluster and not apart", "cluster and apart"
_QUICK = ("engine and not cluster", "not cluster and not engine")
_TYPES = (sys.executable, "-m", "mypy")
_CLOSING = re.compile(r"\b(passed|failed|errors?|skipped|deselected|ran)\b.* in [\d.]+s\b")
_LAST_IN_LINE = 19
_NO_TESTS = 5  # pytest's exit status if nothing was selected


@dataclass(frozen=True, slots=True)
class Beside:
    """A process whose output is kept until it has ended."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]


def main(arguments: Sequence[str], *checks: Sequence[str]) -> int:
    """Run them, and return the exit status of the first that is not well.

    Args:
        arguments: for pytest.
        checks: commands that run beside the tests.
    """
    with ExitStack() as kept:
        # The tests that start no server and the checks have time: the servers' tests take
        # longer, and more so if theirs is taken.
        patient = [_start(check, kept, _LAST_IN_LINE) for check in checks]
        quick = [_start(_pytest(which, arguments), kept, _LAST_IN_LINE) for which in _QUICK]
        second = _start(_pytest(_SECOND, arguments), kept)
        first = subprocess.Popen(
            _pytest(_FIRST, arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said = [_echo(first), *(_ended(one) for one in (second, *quick))]
        for check in patient:
            _ended(check)
    tests = [one.returncode for one in (first, *(x.process for x in (second, *quick)))]
    print(_closing(*said), flush=True)
    if all(one == _NO_TESTS for one in tests):
        return _NO_TESTS
    status = [*tests, *(check.process.returncode for check in patient)]
    return next((one for one in status if one not in (0, _NO_TESTS)), 0)


def _pytest(which: str, arguments: Sequence[str]) -> list[str]:
    # Each has a cache of its own, or they would forget each other's failures.
    cache = f"cache_dir=.pytest_cache/{which.replace(' ', '-')}"
    return [sys.executable, "-m", "pytest", "-m", which, "-o", cache, *arguments]


def _start(command: Sequence[str], kept: ExitStack, nice: int = 0) -> Beside:
    output = kept.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    if nice:
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
    return Beside(process, output)


def _ended(beside: Beside) -> bytes:
    """Wait for its end, print what it has said, and return that."""
    beside.process.wait()
    beside.output.seek(0)
    said = beside.output.read()
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    return said


def _echo(process: "subprocess.Popen[bytes]") -> bytes:
    """Print what a process says as it says it, and return that when it has ended."""
    assert process.stdout is not None
    said = b""
    while data := os.read(process.stdout.fileno(), 65536):
        said += data
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    process.wait()
    return said


def _closing(*outputs: bytes) -> str:
    """Return one closing line for those of several runs."""
    total: Counter[str] = Counter()
    seconds = 0.0
    for output in outputs:
        # Something may still be said behind it, of a socket that nobody closed.
        lines = output.decode(errors="replace").splitlines()
        closing = next((line for line in reversed(lines) if _CLOSING.search(line)), "")
        for count, what in re.findall(r"(\d+) ([a-z]+)", closing.partition(" in ")[0]):
            total[what] += int(count)
        if took := re.search(r" in ([\d.]+)s", closing):
            seconds = max(seconds, float(took[1]))
    # Each counts what the others run as deselected.
    told = ", ".join(f"{count} {what}" for what, count in total.items() if what != "deselected")
    return f"{told or 'no tests ran'} in {seconds:.2f}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _TYPES))

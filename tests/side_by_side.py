"""Run the tests that start servers, and beside them all others: the former mostly wait.

Takes what pytest takes, for both. The output of the others comes when they have ended, in one
piece; the last line counts all tests. Fails if either does.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import IO

_CLUSTER, _QUICK = "cluster", "not cluster"
_CLOSING = re.compile(r"\b(passed|failed|errors?|skipped|deselected|ran)\b.* in [\d.]+s\b")
_LAST_IN_LINE = 19  # behind Ray's processes, which ask for 15
_NO_TESTS = 5  # pytest's exit status if nothing was selected


def main(arguments: Sequence[str]) -> int:
    """Run them, and return the exit status: pytest's, of the first that is not well."""
    with tempfile.TemporaryFile() as kept:
        quick = _start(_QUICK, arguments, kept)
        # It has time: the servers' tests take longer, and more so if theirs is taken.
        os.setpriority(os.PRIO_PROCESS, quick.pid, _LAST_IN_LINE)
        cluster = _start(_CLUSTER, arguments, subprocess.PIPE)
        said = _echo(cluster)
        status = [cluster.wait(), quick.wait()]
        kept.seek(0)
        told = kept.read()
        sys.stdout.buffer.write(told)
    print(_closing(said, told), flush=True)
    if all(one == _NO_TESTS for one in status):
        return _NO_TESTS
    return next((one for one in status if one not in (0, _NO_TESTS)), 0)


def _start(
    which: str, arguments: Sequence[str], output: int | IO[bytes]
) -> "subprocess.Popen[bytes]":
    # Each has a cache of its own, or they would forget each other's failures.
    cache = f"cache_dir=.pytest_cache/{which.replace(' ', '-')}"
    command = [sys.executable, "-m", "pytest", "-m", which, "-o", cache, *arguments]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def _echo(process: "subprocess.Popen[bytes]") -> bytes:
    """Print what a process says as it says it, and return it."""
    assert process.stdout is not None
    said = b""
    while data := os.read(process.stdout.fileno(), 65536):
        said += data
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
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
    # Both count what the other runs as deselected.
    told = ", ".join(f"{count} {what}" for what, count in total.items() if what != "deselected")
    return f"{told or 'no tests ran'} in {seconds:.2f}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

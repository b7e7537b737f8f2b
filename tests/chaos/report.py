"""The report of a run that failed: what went wrong, and what had been done to the server."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos.attempt import Attempt
from tests.chaos.faults import Fault

_LINES = 12


def summary(attempts: Sequence[Attempt], faults: Sequence[Fault]) -> str:
    """Return one line: what was done to the server, and what clients got from it."""
    done = Counter(fault.kind.value for fault in faults)
    got = Counter(_ending(attempt) for attempt in attempts)
    return ", ".join(f"{n} {what}" for what, n in (*sorted(done.items()), *sorted(got.items())))


def report(
    complaints: Iterable[tuple[Attempt, str]], faults: Sequence[Fault], began: float, logs: Path
) -> str:
    """Return what to print.

    Args:
        complaints: attempts that ended as none may, and why.
        faults: all that was done to the server.
        began: when the run did, on the clock of the attempts and faults.
        logs: the server's.
    """
    lines = ["what was done to the server:"]
    lines += [f"  {fault.at - began:7.2f} s  {fault.kind} {fault.pid}" for fault in faults]
    for attempt, why in complaints:
        lines.append(f"{why}\n  {attempt.began - began:.2f} s: {attempt}")
        lines += [f"    {line}" for line in logged(logs, attempt.name)]
    return "\n".join(lines)


def logged(logs: Path, name: str) -> list[str]:
    """Return the newest lines of the server's logs that name a request."""
    found = [
        f"{log.name}: {line}"
        for log in sorted(logs.rglob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if name in line
    ]
    return found[-_LINES:]


def _ending(attempt: Attempt) -> str:
    if attempt.left:
        return "left"
    if attempt.hung:
        return "hung"
    if attempt.broken is not None:
        return "broken"
    if attempt.expired:
        return "late"
    return "served" if attempt.complete else f"refused with {attempt.status}"

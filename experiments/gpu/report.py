"""The report of a check: what each part found, or how it failed, kept after every part.

Parts run in a process of their own.  An error on a GPU can spoil the process that made it,
or end it; then the parts after it run in a new one.
"""

import json
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Result = dict[str, Any]
_SAID = 2000
_LINES = 24


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to find out.

    Attributes:
        name: what the report calls it.
        work: finds it out.
    """

    name: str
    work: Callable[[], Result]


class Worker:
    """Does parts in this process, and notes each before and after.

    Args:
        notes: a file of one JSON object a line.
        clock: seconds.
    """

    def __init__(self, notes: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._notes = notes
        self._clock = clock

    def run(self, parts: Sequence[Part], first: int, spoils: Callable[[Exception], bool]) -> bool:
        """Do the parts from ``first`` on; true if all were done.

        Args:
            parts: all of them, the same in every process.
            first: how many earlier processes have done.
            spoils: whether an error leaves a process in which nothing works.
        """
        for part in parts[first:]:
            self._note(part=part.name)
            begin = self._clock()
            try:
                told: Result = {"result": part.work()}
                failure = None
            # Whatever goes wrong on a machine like this for the first time, others go on.
            except Exception as error:
                told = {
                    "error": f"{type(error).__name__}: {error}"[:_SAID],
                    "where": traceback.format_exc().splitlines()[-_LINES:],
                }
                failure = error
            self._note(seconds=round(self._clock() - begin, 2), **told)
            if failure is not None and spoils(failure):
                return False
        self._note(done=True)
        return True

    def _note(self, **what: Any) -> None:
        with self._notes.open("a") as file:
            file.write(json.dumps(what) + "\n")


class Overseer:
    """Starts processes until all parts are done, or the time is over.

    Args:
        notes: the file that the processes write to; need not exist.
        command: starts one; the number of parts that are done is added to it.
        seconds: after which nothing more is waited for.
        patience: seconds that one part may take.
        clock: seconds.
    """

    def __init__(
        self,
        notes: Path,
        command: Sequence[str],
        seconds: float,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notes = notes
        self._command = command
        self._end = clock() + seconds
        self._patience = patience
        self._clock = clock
        self._shown = 0

    def run(self) -> list[Result]:
        """Let all parts be done; returns what was noted of each."""
        while True:
            before = len(self._parts())
            code = self._process(before)
            parts = self._parts()
            if parts and not ({"result", "error"} & parts[-1].keys()):
                self._add(seconds=0.0, error=f"the process ended with {code}", where=[])
            if self._is_done() or len(parts) == before or self._clock() > self._end:
                return self._parts()

    def _process(self, first: int) -> int | str:
        """Run one process; its exit code, or why it was ended."""
        process = subprocess.Popen([*self._command, str(first)])
        seen, since = -1, self._clock()
        try:
            while process.poll() is None:
                time.sleep(0.1)
                self._show()
                now = self._clock()
                size = self._notes.stat().st_size if self._notes.exists() else 0
                if size != seen:
                    seen, since = size, now
                if now > self._end:
                    return "the time is over"
                if now - since > self._patience:
                    return f"no news in {self._patience:.0f} s"
            return int(process.returncode)
        finally:
            process.kill()
            process.wait()
            self._show()

    def _noted(self) -> list[Result]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def _parts(self) -> list[Result]:
        parts: list[Result] = []
        for note in self._noted():
            if "part" in note:
                parts.append(note)
            elif "done" not in note:
                parts[-1].update(note)
        return parts

    def _is_done(self) -> bool:
        return any("done" in note for note in self._noted())

    def _add(self, **what: Any) -> None:
        with self._notes.open("a") as file:
            file.write(json.dumps(what) + "\n")
        self._show()

    def _show(self) -> None:
        """Print a line for each part that is newly finished."""
        finished = [part for part in self._parts() if "seconds" in part]
        for part in finished[self._shown :]:
            state = "ok" if "result" in part else f"FAILED: {part['error']}"
            print(f"{part['seconds']:7.1f} s  {part['part']}: {state}", flush=True)
        self._shown = len(finished)


def markdown(parts: Sequence[Result], missing: Sequence[str]) -> str:
    """The report for people.

    Args:
        parts: what was noted.
        missing: names of those that were not begun.
    """
    lines = ["# GPU check", ""]
    for told in parts:
        lines += [f"## {told['part']} ({told['seconds']} s)", ""]
        if "error" in told:
            lines += [f"FAILED: {told['error']}", "", "```", *told["where"], "```"]
        for key, value in told.get("result", {}).items():
            values = value if isinstance(value, list) else [value]
            lines += [f"- {key}: {one:.4g}" if isinstance(one, float) else f"- {key}: {one}"
                      for one in values]  # fmt: skip
        lines.append("")
    if missing:
        lines += ["## Not begun, for lack of time", "", *(f"- {name}" for name in missing), ""]
    return "\n".join(lines)

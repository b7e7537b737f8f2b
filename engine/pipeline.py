"""Pipeline: the steps that have been launched and whose results are still to come.

Without overlap a step is computed when its result is asked for. With it, a thread of its own
computes the steps in order, and two can be under way: on a device the second is queued behind
the first, and begins the moment that one ends.
"""

from collections import deque
from functools import partial

from engine.flight import Flight
from engine.host_blocks import HostBlocks
from engine.step import Launched, StepExecutor, StepResult
from engine.worker import Worker


class Pipeline:
    """Launches steps and returns their results in the same order."""

    def __init__(self, executor: StepExecutor, host: HostBlocks | None, overlap: bool) -> None:
        """Begin with no step.

        Args:
            executor: nobody else may use it.
            host: makes the copies that steps ask for.
            overlap: compute on a thread of its own.
        """
        self._executor = executor
        self._host = host
        self._worker: Worker[Launched] | None = Worker("model") if overlap else None
        self._flights: deque[Flight] = deque()
        self._launched: Launched | None = None

    def __len__(self) -> int:
        """How many steps are under way."""
        return len(self._flights)

    @property
    def overlaps(self) -> bool:
        """Whether steps are computed while the caller does something else."""
        return self._worker is not None

    @property
    def first(self) -> Flight:
        """The step whose result comes next."""
        return self._flights[0]

    def launch(self, flight: Flight) -> None:
        """Let a step be computed after those before it."""
        self._flights.append(flight)
        if self._worker is not None:
            self._worker.start(partial(self._compute, flight))

    def wait(self) -> tuple[Flight, StepResult]:
        """Return the next step with its result; if this is interrupted it can be asked again."""
        flight = self._flights[0]
        if self._worker is None:
            try:
                return flight, self._compute(flight).wait()
            finally:
                self._flights.popleft()
        if self._launched is None:
            self._launched = self._worker.result()
        result = self._launched.wait()
        self._launched = None
        self._flights.popleft()
        if self._flights:
            self._flights[0].misled.update(result.misled)
        return flight, result

    def _compute(self, flight: Flight) -> Launched:
        """Run the model; what is swapped has to be in its place before, in order of the steps."""
        if self._host is not None:
            self._host.make(flight.copies)
        return flight.launch(self._executor)

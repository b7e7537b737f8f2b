"""Failures: when it is not single requests that are broken, but the engine."""

from engine.step import StepResult

# So many forward passes that raised, with no good one between them, are not the requests' fault.
MAX_FAILURES = 3


class NothingWorks(RuntimeError):
    """Forward pass after forward pass raised; ``reason`` is the last one's error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Failures:
    """Counts forward passes that raised since the last good one."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, result: StepResult) -> None:
        """Take in a step.

        Raises:
            NothingWorks: it was one too many.
        """
        if not result.awaited:  # it proves nothing: a prompt that fails has such a step behind it
            return
        if result.broken == 0:
            self._count = 0
            return
        self._count += result.broken
        if self._count >= MAX_FAILURES:
            raise NothingWorks(next(iter(result.errors.values()), "unknown"))

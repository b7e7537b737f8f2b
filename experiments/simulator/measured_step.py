"""MeasuredStep: one step of a real engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step: its work, as in `StepTime.seconds`, and how long it took."""

    prefill: int
    pairs: int
    decodes: int
    context: int
    seconds: float

"""Stretches: who gets a token with every step, without a note of each token."""

from bisect import bisect_right
from collections.abc import Iterable

from experiments.simulator.errand import Errand


class Stretches:
    """The errands of one replica that decode in every step.

    A stretch begins with a token and goes on for as long as each step gives another one. What
    all of them have in common is kept once: the steps' numbers, the times between them, and how
    many tokens they attend to. So a step costs the same however many decode.

    Attributes:
        count: how many there are.
        context: tokens that they have, summed: what the next step attends to.
        step: number of the last step.
    """

    __slots__ = ("_gaps", "_last_at", "_numbers", "context", "count", "step")

    def __init__(self) -> None:
        self.count = 0
        self.context = 0
        self.step = 0
        self._last_at = 0.0
        # Numbers of steps, and the time before each; only steps longer than all after them.
        self._numbers: list[int] = []
        self._gaps: list[float] = []

    def stepped(self, now: float) -> None:
        """A step has ended, and has given a token to all of them."""
        self.step += 1
        if self.count:
            gap, numbers, gaps = now - self._last_at, self._numbers, self._gaps
            while gaps and gaps[-1] <= gap:
                numbers.pop()
                gaps.pop()
            numbers.append(self.step)
            gaps.append(gap)
            self.context += self.count
        self._last_at = now

    def begin(self, errand: Errand, now: float) -> None:
        """It got a token with the step that has just ended, by whatever way."""
        outcome = errand.outcome
        if errand.length > errand.arrival.prompt_tokens:
            outcome.longest_gap_s = max(outcome.longest_gap_s, now - errand.last_at)
        errand.length += 1
        errand.since = self.step
        self.count += 1
        self.context += errand.length

    def length(self, errand: Errand) -> int:
        """Tokens that it has now, prompt and generated."""
        return errand.length + (self.step - errand.since if errand.since >= 0 else 0)

    def end(self, errand: Errand) -> None:
        """It gets no token with the next step, or had its last one with the last step."""
        if errand.since < 0:
            return
        errand.length = length = self.length(errand)
        longest = bisect_right(self._numbers, errand.since)
        if longest < len(self._gaps):
            outcome = errand.outcome
            outcome.longest_gap_s = max(outcome.longest_gap_s, self._gaps[longest])
        errand.since = -1
        errand.last_at = self._last_at
        self.count -= 1
        self.context -= length
        if not self.count:
            self._numbers.clear()
            self._gaps.clear()

    def end_all(self, errands: Iterable[Errand]) -> None:
        """None of them gets a token any more."""
        for errand in errands:
            self.end(errand)

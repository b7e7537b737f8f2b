"""StepTimes: what a step costs here, learned from the steps that were made.

A step's time is taken to be what its decodes cost, plus what its prompt tokens add. Each
part is a straight line, drawn through the steps of late: sequences grow longer, machines
get busy, and what was true a minute ago is not any more. That is rough, but the lines go
through what was last measured, so a prediction near that is right whatever the curve.
"""

from typing import Final

SLOW: Final = 0.1
"""How much of what is known one more step replaces, where there is time to learn."""
FAST: Final = 0.25
"""The same of what prompts cost: the next step is planned by it."""
CREDIBLE: Final = 4.0
"""A time that is further off than so many times counts as that: one hiccup is no news."""
_STIFF: Final = 0.1  # points this close to each other, as a share, do not turn the line
_FLATTEST: Final = 0.2  # the least slope, as a share of that of a line from the origin


class Line:
    """A straight line through points, the late ones above all; it rises from 0 or above.

    Mean and moments are West's (1979), with weights that fade. The slope is that of least
    squares, held to the one before as if by a few points more, so that points that hardly
    differ, from which nothing can be learned about it, do not turn it.
    """

    def __init__(self, gain: float) -> None:
        """Start without points; each new one gets the weight ``gain``, all others the rest."""
        self._gain = gain
        self._x = 0.0
        self._y = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self.slope = 0.0

    @property
    def known(self) -> bool:
        """Whether it has seen a point."""
        return self._y > 0.0

    def observe(self, x: float, y: float) -> None:
        """Take a point, both of whose coordinates are above 0."""
        if not self.known:
            self._x, self._y, self.slope = x, y, y / x
            return
        gain, dx, dy = self._gain, x - self._x, y - self._y
        self._x += gain * dx
        self._y += gain * dy
        self._variance = (1 - gain) * (self._variance + gain * dx * dx)
        self._covariance = (1 - gain) * (self._covariance + gain * dx * dy)
        stiff = (_STIFF * self._x) ** 2
        slope = (self._covariance + stiff * self.slope) / (self._variance + stiff)
        steepest = self._y / self._x
        self.slope = min(max(slope, _FLATTEST * steepest), steepest)

    def at(self, x: float) -> float:
        """Return y at ``x`` >= 0; 0 if no point is known."""
        return max(0.0, self._y + self.slope * (x - self._x))

    def reaches(self, y: float) -> float:
        """Return the x at which it has come to ``y``; below 0 if it begins above."""
        return self._x + (y - self._y) / self.slope


class StepTimes:
    """Learns from steps, in seconds; predicts, without side effects.

    Attributes:
        decodes: seconds of a step without prompts, over its decodes.
        prompts: seconds that prompts add to a step, over their tokens.
        spread: how far predictions are off on average, as a share of the time.
        reach: prompt tokens that steps of late got to; further than that little is known.
    """

    def __init__(self) -> None:
        self.decodes = Line(SLOW)
        self.prompts = Line(FAST)
        self.spread = 0.0
        self.reach = 0.0

    def observe(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        """Learn from a step that computed something and took more than no time.

        Args:
            prompt_tokens: tokens of prompts that it computed, >= 0.
            decodes: decodes that it computed, >= 0.
            seconds: how long it took.
        """
        if seconds <= 0.0 or prompt_tokens + decodes == 0:
            return
        line = self.prompts if prompt_tokens else self.decodes
        alone = self.decodes.at(decodes)
        if line.known:
            expected = alone + self.prompts.at(prompt_tokens) if prompt_tokens else alone
            seconds = min(max(seconds, expected / CREDIBLE), expected * CREDIBLE)
            self.spread += SLOW * (abs(seconds / expected - 1.0) - self.spread)
        if prompt_tokens:
            # A step that was faster than its decodes alone still says that prompts cost little.
            self.prompts.observe(prompt_tokens, max(seconds - alone, seconds / 100))
            fading = self.reach + SLOW * (prompt_tokens - self.reach)
            self.reach = max(float(prompt_tokens), fading)
        else:
            self.decodes.observe(decodes, seconds)

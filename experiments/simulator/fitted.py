"""Fitted: how long a step takes, from steps that were measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from experiments.simulator.measured_step import MeasuredStep
from experiments.simulator.nnls import Floats, solve

KNOTS: Final = (4, 8, 32, 128, 512)
"""Rows at which what one more costs may change: kernels work in tiles, and few rows wait for
the weights, which are read once whatever their number."""
_ROUNDS: Final = 12
_DOUBT: Final = 2.0  # off by more than so many typical errors, a step counts for less
_TABLED: Final = 4096


@dataclass(frozen=True, slots=True)
class Fitted:
    """A step's price: a part for its rows, which are its tokens, and one for what they attend to.

    The part for rows is a line that changes its slope at the knots and never falls.

    Attributes:
        fixed: seconds of a step with anything to do, >= 0.
        knots: rows where the slope changes, rising, from 1.
        slopes: seconds a row up to each knot, and after the last; one more than knots, >= 0.
        decode: seconds that a decode takes beyond its row, >= 0.
        pair: seconds for a prompt's token and one that it attends to, >= 0.
        context: seconds for each token that a decode attends to, >= 0.
        copy: seconds of a step that copies blocks at all, >= 0.
        copy_block: seconds to copy one block, >= 0.

    Raises:
        ValueError: a field is out of its range.
    """

    fixed: float
    knots: tuple[int, ...]
    slopes: tuple[float, ...]
    decode: float
    pair: float
    context: float
    copy: float = 0.0
    copy_block: float = 0.0
    _rows: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip((0, *self.knots), self.knots, strict=False))
        if not rising:
            raise ValueError(f"knots is {self.knots}: rising whole numbers from 1 are needed")
        if len(self.slopes) != len(self.knots) + 1:
            raise ValueError(f"slopes has {len(self.slopes)} values, not {len(self.knots) + 1}")
        named = [("slopes", slope) for slope in self.slopes]
        scalars = ("fixed", "decode", "pair", "context", "copy", "copy_block")
        named += [(name, getattr(self, name)) for name in scalars]
        for name, value in named:
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}: a number from 0 is needed")
        # Looked up once a step, so most of the arithmetic is done here.
        object.__setattr__(self, "_rows", [self._of_rows(rows) for rows in range(_TABLED)])

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        """As `StepTime.seconds`."""
        rows = prefill + decodes
        base = self._rows[rows] if rows < _TABLED else self._of_rows(rows)
        return base + decodes * self.decode + pairs * self.pair + context * self.context

    def copies(self, blocks: int) -> float:
        """As `StepTime.copies`."""
        return self.copy + blocks * self.copy_block if blocks else 0.0

    def _of_rows(self, rows: int) -> float:
        if not rows:
            return 0.0
        parts = _segments(rows, self.knots)
        return self.fixed + sum(
            part * slope for part, slope in zip(parts, self.slopes, strict=True)
        )


def fit(steps: Sequence[MeasuredStep], copy: float = 0.0, copy_block: float = 0.0) -> Fitted:
    """Return the model that is least off from measured steps, as a share of their time.

    Steps that are far off, such as those during which the machine did something else, count
    for less: least squares with Huber's weights (*Robust Statistics*, 1981), made anew some
    times. No coefficient is below 0, so that no step gets cheaper by having more to do.

    Args:
        steps: what was measured.
        copy, copy_block: as in `Fitted`.

    Raises:
        ValueError: fewer steps than coefficients, or one that took no time or had no work.
    """
    longest = max((step.prefill + step.decodes for step in steps), default=0)
    knots = tuple(knot for knot in KNOTS if knot < longest)
    matrix = np.array([_features(step, knots) for step in steps], dtype=np.float64)
    if len(steps) < 2 * (len(knots) + 5):
        raise ValueError(f"{len(steps)} steps are too few: {2 * (len(knots) + 5)} are needed")
    seconds = np.array([step.seconds for step in steps])
    if not (seconds > 0.0).all() or not matrix[:, 0].all():
        raise ValueError("every step has to have had work and to have taken time")
    found = _robust(matrix / seconds[:, None])
    bend = len(knots) + 2
    fixed, slopes = float(found[0]), tuple(float(slope) for slope in found[1:bend])
    decode, pair, context = (float(value) for value in found[bend:])
    return Fitted(fixed, knots, slopes, decode, pair, context, copy, copy_block)


def errors(model: Fitted, steps: Sequence[MeasuredStep]) -> list[float]:
    """Return how far off each step's prediction is, as a share of its time, signed."""
    return [
        model.seconds(step.prefill, step.pairs, step.decodes, step.context) / step.seconds - 1.0
        for step in steps
    ]


def _robust(shares: Floats) -> Floats:
    """Solve shares x = 1 with weights that fall for points far off."""
    target = np.ones(len(shares))
    weights = np.ones(len(shares))
    found = np.zeros(shares.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = solve(shares * root[:, None], root)
        off = np.abs(shares @ found - target)
        # The median error, times what makes it a normal distribution's standard deviation.
        typical = max(1.4826 * float(np.median(off)), 1e-9)
        weights = np.minimum(1.0, _DOUBT * typical / np.maximum(off, 1e-12))
    return found


def _features(step: MeasuredStep, knots: Sequence[int]) -> list[float]:
    rows = step.prefill + step.decodes
    parts = _segments(rows, knots)
    return [float(rows > 0), *parts, float(step.decodes), float(step.pairs), float(step.context)]


def _segments(rows: int, knots: Sequence[int]) -> list[float]:
    """How many rows lie before the first knot, between each two, and after the last."""
    lows, highs = (0, *knots), (*knots, rows)
    return [float(max(0, min(rows, high) - low)) for low, high in zip(lows, highs, strict=True)]

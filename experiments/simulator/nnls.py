"""Least squares without negative coefficients."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def solve(matrix: Floats, target: Floats) -> Floats:
    """Return x >= 0 with the least |matrix x - target|.

    The method of active sets of Lawson and Hanson, *Solving Least Squares Problems*, 1974,
    chapter 23. Columns are scaled to one length first, so their units do not matter.

    Args:
        matrix: [points, coefficients].
        target: [points].

    Returns:
        [coefficients]; 0 for a column of zeros.

    Raises:
        ValueError: there are no points, the shapes differ or a number is not finite.
    """
    if matrix.ndim != 2 or not matrix.shape[0] or target.shape != matrix.shape[:1]:
        raise ValueError(f"shapes {matrix.shape} and {target.shape}: points by coefficients first")
    if not (np.isfinite(matrix).all() and np.isfinite(target).all()):
        raise ValueError("every number has to be finite")
    lengths = np.linalg.norm(matrix, axis=0)
    used = lengths > 0.0
    scaled = matrix[:, used] / lengths[used]
    x = np.zeros(matrix.shape[1])
    x[used] = _active_set(scaled, target) / lengths[used]
    return x


def _active_set(a: Floats, b: Floats) -> Floats:
    count = a.shape[1]
    x = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(a.T @ b).max(initial=0.0)))
    # Each round either frees one more or ends; rounding could make it turn in a circle.
    for _ in range(3 * count + 10):
        gradient = a.T @ (b - a @ x)
        gradient[free] = -np.inf
        if free.all() or gradient.max(initial=-np.inf) <= tolerance:
            break
        free[int(gradient.argmax())] = True
        x = _inner(a, b, x, free)
    return x


def _inner(a: Floats, b: Floats, x: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Go to the least squares of the free coefficients; whichever gets to 0 on the way stays."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
        below = free & (best <= 0.0)
        if not below.any():
            return best
        step = float((x[below] / np.maximum(x[below] - best[below], 1e-300)).min())
        x = x + min(1.0, step) * (best - x)
        free &= x > 1e-12 * max(1.0, float(x.max()))
        x = np.where(free, x, 0.0)

"""TimeTable: how long a step takes, read off a grid of measured milliseconds."""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

AXES = ("prefill", "decodes", "context")


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Milliseconds at the nodes of a grid; between them they are interpolated linearly.

    Below the first node of an axis its value holds: a smaller step is not known to be cheaper.
    Beyond the last one it rises by as much a token or sequence as between the last two nodes, on
    average over the whole edge: larger steps never take less, whatever the corner's lines do.

    Attributes:
        prefill: prompt tokens of the nodes, rising, from 0.
        decodes: sequences that decode, likewise.
        context: tokens that each of those attends to on average, likewise. A step without
            decodes is looked up at the first.
        milliseconds: [prefill, decodes, context], flat, the last axis fastest; each > 0.
        pair_ms: what a prompt's token adds for each token it attends to, as the grid does not
            say how far into its prompt a chunk is; >= 0.
        copy_block_ms: of copying one block between device and host memory, >= 0.

    Raises:
        ValueError: a field is out of its range.
    """

    prefill: tuple[int, ...]
    decodes: tuple[int, ...]
    context: tuple[int, ...]
    milliseconds: tuple[float, ...]
    pair_ms: float = 0.0
    copy_block_ms: float = 0.0
    _seconds: list[float] = field(init=False, repr=False, compare=False)
    _beyond: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cells = 1
        for name in AXES:
            nodes: tuple[int, ...] = getattr(self, name)
            rising = all(low < high for low, high in itertools.pairwise(nodes))
            if not nodes or nodes[0] < 0 or not rising:
                raise ValueError(f"{name} is {list(nodes)}: rising numbers from 0 are needed")
            cells *= len(nodes)
        if len(self.milliseconds) != cells:
            raise ValueError(f"milliseconds has {len(self.milliseconds)} values, not {cells}")
        for value in self.milliseconds:
            if not 0.0 < value < float("inf"):
                raise ValueError(f"milliseconds has {value!r}: numbers above 0 are needed")
        for name in ("pair_ms", "copy_block_ms"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}: a number from 0 is needed")
        object.__setattr__(self, "_seconds", [value / 1e3 for value in self.milliseconds])
        object.__setattr__(self, "_beyond", tuple(self._edge(axis) for axis in range(3)))

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        """As `StepTime.seconds`."""
        if not prefill and not decodes:
            return 0.0
        mean = context / decodes if decodes else 0.0
        i, x, past = _locate(self.prefill, prefill)
        j, y, over = _locate(self.decodes, decodes)
        k, z, far = _locate(self.context, mean)
        value = self._at(i, x, j, y, k, z) + pairs * self.pair_ms / 1e3
        if past or over or far:
            each = self._beyond
            value += past * each[0] + over * each[1] + far * each[2]
        return value

    def copies(self, blocks: int) -> float:
        """As `StepTime.copies`."""
        return blocks * self.copy_block_ms / 1e3

    def _edge(self, axis: int) -> float:
        """Seconds that one more costs between an axis's last two nodes, on average; >= 0."""
        nodes: tuple[int, ...] = getattr(self, AXES[axis])
        if len(nodes) < 2:
            return 0.0
        grid = np.reshape(self._seconds, [len(getattr(self, name)) for name in AXES])
        rise = float((grid.take(-1, axis) - grid.take(-2, axis)).mean())
        return max(0.0, rise / (nodes[-1] - nodes[-2]))

    def _at(self, i: int, x: float, j: int, y: float, k: int, z: float) -> float:
        low = self._plane(i, j, y, k, z)
        return low + x * (self._plane(i + 1, j, y, k, z) - low) if x else low

    def _plane(self, i: int, j: int, y: float, k: int, z: float) -> float:
        low = self._line(i, j, k, z)
        return low + y * (self._line(i, j + 1, k, z) - low) if y else low

    def _line(self, i: int, j: int, k: int, z: float) -> float:
        known = self._seconds
        at = (i * len(self.decodes) + j) * len(self.context) + k
        low = known[at]
        return low + z * (known[at + 1] - low) if z else low


def _locate(nodes: Sequence[int], value: float) -> tuple[int, float, float]:
    """Return the cell of a value, how far into it that lies, and how far beyond the last."""
    at = bisect_right(nodes, value) - 1
    if at < 0:
        return 0, 0.0, 0.0
    low = nodes[at]
    if at + 1 == len(nodes):
        return at, 0.0, value - low
    return at, (value - low) / (nodes[at + 1] - low), 0.0

"""Labels: texts beside points, of which none lies on another or on a point."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from matplotlib.axes import Axes

from experiments.report.axes import text_width
from experiments.report.look import GROUND, TEXT_PT

_AROUND_PT: Final = 2.0
_POINT_PT: Final = 4.0
_NEAR_PT: Final = 9.0

_Box: TypeAlias = tuple[float, float, float, float]
_Side: TypeAlias = Literal["left", "right", "center"]


class Labels:
    """Finds room in axes whose limits stay as they are.

    Invariant: ``_places`` is where the points are in the axes, in 1/72 inches from the lower left
    corner; ``_taken`` is what nothing may be written on.
    """

    def __init__(self, axes: Axes, points: Sequence[tuple[float, float]]) -> None:
        """Keep what is drawn free.

        Args:
            axes: with linear scales.
            points: in the axes' units.
        """
        self._axes = axes
        self._width, self._height = float(axes.bbox.width), float(axes.bbox.height)
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        self._places = [
            ((x - left) / (right - left) * self._width, (y - low) / (high - low) * self._height)
            for x, y in points
        ]
        self._taken: list[_Box] = [
            (x - _POINT_PT, y - _POINT_PT, x + _POINT_PT, y + _POINT_PT) for x, y in self._places
        ]

    def heaps(self, numbers: Iterable[int]) -> list[list[int]]:
        """Return the numbers of points, those together that are too near for labels of their own.

        The first of each has the place where one label for all of them belongs.
        """
        heaps: list[list[int]] = []
        for i in numbers:
            for heap in heaps:
                if self._near(i, heap[0]):
                    heap.append(i)
                    break
            else:
                heaps.append([i])
        return heaps

    def _near(self, one: int, other: int) -> bool:
        (x, y), (z, w) = self._places[one], self._places[other]
        return abs(x - z) < _NEAR_PT and abs(y - w) < _NEAR_PT

    def put(self, number: int, texts: Sequence[str], **style: Any) -> bool:
        """Write the first of the texts that has room beside a point; False if none has.

        Args:
            number: of the point.
            texts: the best first.
            style: as `Axes.text` takes it.
        """
        for text, side, box in _boxes(texts, self._places[number], self._width):
            if self._fits(box):
                self._taken.append(box)
                # By the side that is next to the point: a page has fonts of its own.
                x = {"left": box[0], "right": box[2], "center": (box[0] + box[2]) / 2}[side]
                where = (x / self._width, (box[1] + box[3]) / 2 / self._height)
                ground = {"facecolor": GROUND, "edgecolor": "none", "pad": 0.5, "alpha": 0.85}
                self._axes.text(
                    *where,
                    text,
                    transform=self._axes.transAxes,
                    ha=side,
                    va="center",
                    bbox=ground,
                    **style,
                )
                return True
        return False

    def _fits(self, box: _Box) -> bool:
        left, low, right, high = box
        inside = left >= 0 and right <= self._width and low >= 0 and high <= self._height
        return inside and not any(_overlap(box, other) for other in self._taken)


def _boxes(
    texts: Sequence[str], place: tuple[float, float], width: float
) -> list[tuple[str, _Side, _Box]]:
    """Return where each text could stand around a point, the best first.

    What is to be above or below the point moves aside at the edge of axes of this width.
    """
    found: list[tuple[str, _Side, _Box]] = []
    x, y = place
    for text in texts:
        wide, half = text_width(text) + _AROUND_PT, TEXT_PT * 0.65
        spots: tuple[tuple[_Side, float, float], ...] = (
            ("left", x + 6, y),
            ("right", x - 6 - wide, y),
            ("center", x - wide / 2, y + 11),
            ("center", x - wide / 2, y - 11),
            ("left", x + 5, y + 10),
            ("left", x + 5, y - 10),
            ("right", x - 5 - wide, y + 10),
            ("right", x - 5 - wide, y - 10),
            # Farther away, for those that lie on one another.
            ("left", x + 5, y + 15),
            ("left", x + 5, y - 15),
            ("right", x - 5 - wide, y + 15),
            ("right", x - 5 - wide, y - 15),
            ("center", x - wide / 2, y + 22),
            ("center", x - wide / 2, y - 22),
        )
        for side, start, middle in spots:
            left = max(0.0, min(start, width - wide)) if side == "center" else start
            found.append((text, side, (left, middle - half, left + wide, middle + half)))
    return found


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

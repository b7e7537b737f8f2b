"""Extent: what is true of all replicas together."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from router.report import Report


class Extent(NamedTuple):
    """Names, kinds and sizes of the replicas; it changes when one comes, goes, or is resized.

    Attributes:
        names: of all, in the order in which they joined.
        smallest, largest: blocks of the smallest and the largest of them; 0 without any.
        kinds: all that there are.
    """

    names: tuple[str, ...] = ()
    smallest: int = 0
    largest: int = 0
    kinds: frozenset[str] = frozenset()

    @classmethod
    def of(cls, figures: Iterable[Report]) -> Self:
        """Work it out from the newest report of each; O(replicas)."""
        figures = tuple(figures)
        sizes = [one.total_blocks for one in figures]
        return cls(
            tuple(one.replica for one in figures),
            min(sizes, default=0),
            max(sizes, default=0),
            frozenset(one.kind for one in figures),
        )

    def has_others(self, kind: str) -> bool:
        """Whether there is a replica that is not of this kind."""
        return not self.kinds <= {kind}

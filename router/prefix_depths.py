"""Which of a prompt's blocks the router is told of: all at first, then fewer and fewer.

The hash of a block stands for all the tokens up to its end, so a few of them say nearly as well
as all how much of a prompt a replica holds. Up to 16 blocks each is told, beyond that eight in
every doubling: of a prefix of 1,000 blocks the router finds at least 960, and what a ticket
carries is bounded.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

MOST_TOLD: Final = 128
"""Hashes that a ticket carries at most; prompts beyond 262,144 blocks are cut there."""

_ALL_UP_TO: Final = 16
_IN_A_DOUBLING: Final = 8


def _depths() -> Iterator[int]:
    yield from range(1, _ALL_UP_TO + 1)
    start = _ALL_UP_TO
    while True:
        step = start // _IN_A_DOUBLING
        yield from range(start + step, 2 * start + 1, step)
        start *= 2


DEPTHS: Final = tuple(islice(_depths(), MOST_TOLD))
"""How many blocks the first, second, ... hash of a ticket stands for."""


def thinned(hashes: Sequence[int], after: int = 0) -> tuple[int, ...]:
    """Return those hashes that are told.

    Args:
        hashes: of full blocks of a prompt, each of all up to its end.
        after: blocks that come before these.
    """
    first, end = bisect_right(DEPTHS, after), bisect_right(DEPTHS, after + len(hashes))
    return tuple(hashes[depth - after - 1] for depth in DEPTHS[first:end])

"""A load's pieces as other tools take them: blocks that each have one length only."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

from experiments.loads.load import Arrival, Load


def whole_blocks(load: Load, *, fill: bool) -> list[tuple[int, ...]]:
    """Return the names of each prompt's blocks.

    aiperf refuses a block that has one length in one prompt and another in the next, and
    guidellm gives it the first one's length in both. So a prompt's last block keeps its name
    only if it is as long wherever it is; else it counts to the rest of the prompt.

    Args:
        load: whose pieces they are.
        fill: name the rest of the prompt too, with names that are not used twice; if no prompt of
            the load has a piece, nothing is named.
    """
    size = load.piece_tokens
    lengths: dict[int, set[int]] = defaultdict(set)
    for arrival in load.arrivals:
        for name, length in _lengths(arrival, size):
            lengths[name].add(length)
    kept = [
        tuple(
            name
            for name, length in _lengths(arrival, size)
            if length == size or len(lengths[name]) == 1
        )
        for arrival in load.arrivals
    ]
    if not fill or not lengths:
        return kept
    return _filled(load.arrivals, kept, size, count(max(lengths) + 1))


def _lengths(arrival: Arrival, size: int) -> Iterator[tuple[int, int]]:
    """Yield the name of each piece that the prompt has something of, and how much."""
    left = arrival.prompt_tokens
    for name in arrival.pieces:
        if left <= 0:
            return
        yield name, min(left, size)
        left -= size


def _filled(
    arrivals: Sequence[Arrival], kept: Sequence[tuple[int, ...]], size: int, new: Iterator[int]
) -> list[tuple[int, ...]]:
    return [
        (*names, *(next(new) for _ in range(len(names), -(-arrival.prompt_tokens // size))))
        for arrival, names in zip(arrivals, kept, strict=True)
    ]

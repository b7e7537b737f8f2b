"""Prompts: the tokens of a load's requests, which nobody has ever written."""

import numpy as np
from numpy.typing import NDArray

from experiments.loads.load import Load

# Of SplitMix64: Steele, Lea and Flood, *Fast splittable pseudorandom number generators*,
# OOPSLA 2014.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

_MASK = 2**64 - 1
_PIECE, _REST = 1, 2  # whose tokens: a piece and a request of one number have others


def prompt_of(load: Load, index: int, vocab: int) -> list[int]:
    """Return the tokens of a request's prompt, the same every time and everywhere.

    A piece's tokens follow from its name alone, and what comes after the pieces from the
    request's place in the load. So two prompts begin alike as far as their pieces do.

    Args:
        load: whose request it is.
        index: of the request, from 0.
        vocab: token ids are from 0 to below this, at least 1.
    """
    arrival = load.arrivals[index]
    count, size = arrival.prompt_tokens, load.piece_tokens
    used = arrival.pieces[: -(-count // size)]
    covered = min(count, len(used) * size)
    tokens = np.empty(count, np.uint64)
    if used:
        seeds = _seeds(_PIECE, np.array([name & _MASK for name in used], np.uint64))
        places = np.arange(1, size + 1, dtype=np.uint64)
        grid = _mixed(seeds[:, None] + _GAMMA * places[None, :])
        tokens[:covered] = grid.reshape(-1)[:covered]
    if covered < count:
        seed = _seeds(_REST, np.array([index], np.uint64))
        places = np.arange(1, count - covered + 1, dtype=np.uint64)
        tokens[covered:] = _mixed(seed + _GAMMA * places)
    return (tokens % np.uint64(vocab)).tolist()


def _seeds(whose: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return where the tokens of each begin: far from each other, whatever the numbers."""
    return _mixed(_mixed(numbers + _GAMMA) + np.uint64(whose))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return other values, of which each bit depends on all bits of the given ones."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))

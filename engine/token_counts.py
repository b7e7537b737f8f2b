"""TokenCounts: how often each token occurs in a list that grows."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Ids: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


class TokenCounts:
    """Counts what has been added to a list since it was last asked, not the list."""

    __slots__ = ("_counts", "_ids", "_place", "_read")

    def __init__(self, before: Sequence[int] = ()) -> None:
        """Begin with tokens that stand before those of the list."""
        self._place: dict[int, int] = {}
        self._ids: Ids = np.empty(64, dtype=np.int64)
        self._counts: Ids = np.zeros(64, dtype=np.int64)
        self._add(before)
        self._read = 0

    def of(self, tokens: Sequence[int]) -> tuple[Ids, Ids]:
        """Return the distinct tokens, in order of first occurrence, and how often each occurs.

        Args:
            tokens: the list, which always begins as it did the last time.

        Returns:
            int64 [distinct] both, which the next call may change.
        """
        if len(tokens) > self._read:
            self._add(tokens[self._read :])
            self._read = len(tokens)
        count = len(self._place)
        return self._ids[:count], self._counts[:count]

    def _add(self, tokens: Sequence[int]) -> None:
        places = self._place
        for token in tokens:
            place = places.get(token)
            if place is None:
                place = places[token] = len(places)
                if place == len(self._ids):
                    self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                    self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
                self._ids[place] = token
            self._counts[place] += 1

"""PrefixUse: how much of a prompt the requests that were placed on a replica have too."""

from typing import Final

from router.prefix_depths import DEPTHS

# Of a ticket's hashes, those by which it is known what is in use: one that is in use says so of
# all before it.
_EVERY: Final = 4
_COUNTED: Final = slice(_EVERY - 1, None, _EVERY)


def counted(prefix: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a ticket's hashes that are counted."""
    return prefix[_COUNTED]


class PrefixUse:
    """By replica, the counted hashes of the tickets there.

    A ticket's hashes are a way from the root of a tree, for each stands for all before it too. So
    each hash has the number of tickets that end at it, plus that of hashes which come next; and a
    ticket changes only what it alone has, and where that begins.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        """Start with no ticket."""
        self._counts: dict[str, dict[int, int]] = {}

    def add(self, replica: str, keys: tuple[int, ...]) -> int:
        """Count a ticket that is placed there, by its `counted` hashes.

        Returns:
            How many blocks of it, at least, tickets there had before.
        """
        counts = self._counts.get(replica)
        if counts is None:
            counts = self._counts[replica] = {}
        used = _used(counts, keys)
        if used:
            counts[keys[used - 1]] += 1
        for key in keys[used:]:
            counts[key] = 1
        return DEPTHS[used * _EVERY - 1] if used else 0

    def remove(self, replica: str, keys: tuple[int, ...]) -> None:
        """Count a ticket no more; nothing happens if the replica was dropped since."""
        counts = self._counts.get(replica)
        if counts is None:
            return
        for key in reversed(keys):
            left = counts[key] - 1
            if left:
                counts[key] = left
                return
            del counts[key]

    def drop(self, replica: str) -> None:
        """Forget a replica with all its tickets."""
        self._counts.pop(replica, None)

    def blocks(self, replica: str, prefix: tuple[int, ...]) -> int:
        """How many blocks of a prompt are in use there; O(log prefix)."""
        counts = self._counts.get(replica)
        used = _used(counts, prefix[_COUNTED]) if counts else 0
        return DEPTHS[used * _EVERY - 1] if used else 0


def _used(counts: dict[int, int], keys: tuple[int, ...]) -> int:
    """How many of the hashes are counted, which are the first ones."""
    used, beyond = 0, len(keys)
    while used < beyond:
        middle = (used + beyond) // 2
        if keys[middle] in counts:
            used = middle + 1
        else:
            beyond = middle
    return used

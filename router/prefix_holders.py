"""Holders: the replicas that hold each hash of a prompt's beginning."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

_LOOKS: Final = 32  # holders of one hash that are named at most

# In place of a holder's name, which is not empty: there are several. One is by far the most common,
# and a dict of one takes several times the memory. And the collector of garbage, which comes by
# often since so little else lives long here, passes over a dict that has only numbers and strings.
_SEVERAL: Final = ""


class Holders:
    """Names of replicas by hash.

    Invariant: a hash is in ``_one`` if somebody holds it, and in ``_several`` if more than one do.
    """

    __slots__ = ("_one", "_several")

    def __init__(self) -> None:
        """Start with no hash."""
        self._one: dict[int, str] = {}
        self._several: dict[int, dict[str, None]] = {}

    def last(self, prefix: tuple[int, ...], begin: int, end: int) -> int:
        """How many hashes there are up to the last before ``end`` that anybody holds.

        Those before ``begin`` count as held, and are not looked up.
        """
        one = self._one
        while end > begin and prefix[end - 1] not in one:
            end -= 1
        return end

    def of(self, key: int) -> Sequence[str]:
        """Who holds the hash, or some of them if they are very many."""
        holder = self._one.get(key)
        if holder is None:
            return ()
        return tuple(islice(self._several[key], _LOOKS)) if holder == _SEVERAL else (holder,)

    def include(self, key: int, replica: str) -> bool:
        """Whether the replica holds the hash."""
        holder = self._one.get(key)
        return replica in self._several[key] if holder == _SEVERAL else holder == replica

    def add(self, keys: Iterable[int], replica: str) -> None:
        """Note that the replica holds hashes, of which it held none."""
        one = self._one
        for key in keys:
            holder = one.setdefault(key, replica)
            if holder == replica:
                continue
            if holder == _SEVERAL:
                self._several[key][replica] = None
            else:
                self._several[key] = {holder: None, replica: None}
                one[key] = _SEVERAL

    def remove(self, keys: Iterable[int], replica: str) -> None:
        """Note that the replica does not hold hashes any more, all of which it did."""
        one = self._one
        for key in keys:
            if one[key] == replica:
                del one[key]
                continue
            holders = self._several[key]
            del holders[replica]
            if len(holders) == 1:
                (one[key],) = holders
                del self._several[key]

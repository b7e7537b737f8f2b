"""Coming: what replicas will hold since tickets that have it were placed there."""

from collections.abc import Mapping

from router.prefix_holders import Holders


class Coming:
    """By replica, hashes with the number of tickets that make it hold them.

    Apart from what replicas have said, of which there may be a hundred times as much: this comes
    and goes with every ticket, and is small enough for a processor's cache.

    Invariants: a replica is in ``holders`` of a hash if and only if the hash has a number there,
    which is > 0.

    Attributes:
        holders: the replicas by hash. Not to be changed.
        pairs: numbers, of all replicas together.
    """

    __slots__ = ("_counts", "holders", "pairs")

    def __init__(self) -> None:
        """Start with no ticket."""
        self._counts: dict[str, dict[int, int]] = {}
        self.pairs = 0
        self.holders = Holders()

    def to(self, replica: str) -> Mapping[int, int]:
        """What the replica will hold."""
        return self._counts.get(replica, {})

    def add(self, replica: str, keys: tuple[int, ...]) -> None:
        """Count a ticket that makes the replica hold these."""
        counts = self._counts.get(replica)
        if counts is None:
            counts = self._counts[replica] = {}
        first = []
        for key in keys:
            if key in counts:
                counts[key] += 1
            else:
                counts[key] = 1
                first.append(key)
        self.holders.add(first, replica)
        self.pairs += len(first)

    def remove(self, replica: str, keys: tuple[int, ...]) -> None:
        """Count it no more; nothing happens if the replica was dropped since."""
        counts = self._counts.get(replica)
        if counts is None:
            return
        last = []
        for key in keys:
            left = counts.pop(key) - 1
            if left:
                counts[key] = left
            else:
                last.append(key)
        self.holders.remove(last, replica)
        self.pairs -= len(last)

    def drop(self, replica: str) -> None:
        """Forget a replica with all its tickets."""
        counts = self._counts.pop(replica, {})
        self.holders.remove(counts, replica)
        self.pairs -= len(counts)

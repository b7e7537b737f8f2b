"""Coming: what replicas will hold since tickets that have it were placed there."""

from collections.abc import Mapping

from router.prefix_holders import Holders


class Coming:
    """By replica, hashes with the number of tickets that make it hold them.

    Apart from what replicas have said, of which there may be a hundred times as much: this comes
    and goes with every ticket, and is small enough for a processor's cache.

    Invariants: a replica is in ``holders`` of a hash if and only if the hash has a number there,
    which is > 0; the length is that of all these together.

    Attributes:
        holders: the replicas by hash. Not to be changed.
    """

    __slots__ = ("_counts", "_pairs", "holders")

    def __init__(self) -> None:
        """Start with no ticket."""
        self._counts: dict[str, dict[int, int]] = {}
        self._pairs = 0
        self.holders = Holders()

    def __len__(self) -> int:
        return self._pairs

    def to(self, replica: str) -> Mapping[int, int]:
        """What the replica will hold."""
        return self._counts.get(replica, {})

    def add(self, replica: str, keys: tuple[int, ...]) -> None:
        """Count a ticket that makes the replica hold these."""
        counts = self._counts.get(replica)
        if counts is None:
            counts = self._counts[replica] = {}
        before = len(counts)
        for key in keys:
            count = counts.get(key, 0)
            counts[key] = count + 1
            if not count:
                self.holders.add(key, replica)
        self._pairs += len(counts) - before

    def remove(self, replica: str, keys: tuple[int, ...]) -> None:
        """Count it no more; nothing happens if the replica was dropped since."""
        counts = self._counts.get(replica)
        if counts is None:
            return
        before = len(counts)
        for key in keys:
            left = counts[key] - 1
            if left:
                counts[key] = left
            else:
                del counts[key]
                self.holders.remove(key, replica)
        self._pairs += len(counts) - before

    def drop(self, replica: str) -> None:
        """Forget a replica with all its tickets."""
        counts = self._counts.pop(replica, {})
        self._pairs -= len(counts)
        for key in counts:
            self.holders.remove(key, replica)

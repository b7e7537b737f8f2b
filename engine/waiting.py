"""The queue of requests that wait for a seat, highest rank first."""

import heapq

from engine.rank import Rank

_MIN_STALE = 64  # below this many, dead entries are not worth a sweep


class WaitingQueue:
    """A priority queue of ids in which any id can be dropped in O(1).

    A dropped id leaves its entry in the heap, to be skipped when it comes up. Once the
    dead outnumber the living they are swept out, so a queue whose members are mostly
    aborted does not grow without bound; the sweep costs O(1) an entry, spread over them.

    Invariant: the top of the heap is alive, so ``peek`` needs no search.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int]] = []
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, id: int) -> bool:
        return id in self._live

    def push(self, rank: Rank, id: int) -> None:
        """Queue ``id``; the smallest rank goes first.

        An id may come back after ``pop``, but not after ``discard``: its dead entry may
        still be in the heap.
        """
        heapq.heappush(self._heap, (rank, id))
        self._live.add(id)

    def peek(self) -> int:
        """Return the id with the highest rank.

        Raises:
            IndexError: the queue is empty.
        """
        return self._heap[0][1]

    def pop(self) -> int:
        """Take out the id with the highest rank and return it.

        Raises:
            IndexError: the queue is empty.
        """
        id = self._pop()[1]
        self._live.remove(id)
        return id

    def first(self, count: int) -> list[int]:
        """Return the ids of the ``count`` highest ranks, or of all if there are fewer.

        Costs O(count log n), and once for each dead entry that comes up among them.
        """
        found = [self._pop() for _ in range(min(count, len(self._live)))]
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [id for _, id in found]

    def take(self, id: int) -> None:
        """Take out one of the highest ranks, as ``pop`` does the highest; ``id`` may come back.

        Costs O(log n) for each before it, since an entry inside a heap cannot be found.

        Raises:
            KeyError: ``id`` is not queued.
        """
        if id not in self._live:
            raise KeyError(id)
        before: list[tuple[Rank, int]] = []
        while (entry := self._pop())[1] != id:
            before.append(entry)
        self._live.remove(id)
        for entry in before:
            heapq.heappush(self._heap, entry)

    def discard(self, id: int) -> bool:
        """Drop ``id``; return whether it was queued."""
        if id not in self._live:
            return False
        self._live.remove(id)
        if len(self._heap) - len(self._live) > max(_MIN_STALE, len(self._live)):
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)
        self._bury()
        return True

    def _pop(self) -> tuple[Rank, int]:
        entry = heapq.heappop(self._heap)
        self._bury()
        return entry

    def _bury(self) -> None:
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)

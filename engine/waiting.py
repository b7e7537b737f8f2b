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
        id = heapq.heappop(self._heap)[1]
        self._live.remove(id)
        self._bury()
        return id

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

    def _bury(self) -> None:
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)

"""LazyHeap: a priority queue whose items can be moved and removed."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=tuple[float, ...])

_SLACK = 64


class LazyHeap(Generic[Key]):
    """Items (strings) by key, smallest key first.

    `put` and `peek` cost O(log n) amortised, `discard` O(1): an entry that was moved or removed
    stays in the heap until it surfaces. Keys of different items must differ.

    Invariant: for each item there is a heap entry whose key *is* ``_live[item]``; all other
    entries are dead. Dead entries never outnumber three times the live ones plus a constant.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, str]] = []
        self._live: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: str) -> bool:
        return item in self._live

    def __iter__(self) -> Iterator[str]:
        """All items, smallest key first; O(n log n)."""
        return iter(sorted(self._live, key=self._live.__getitem__))

    def put(self, item: str, key: Key) -> None:
        """Add the item, or move it to another key."""
        if self._live.get(item) == key:
            return
        self._live[item] = key
        heapq.heappush(self._heap, (key, item))
        if len(self._heap) > _SLACK + 4 * len(self._live):
            self._heap = [(key, item) for item, key in self._live.items()]
            heapq.heapify(self._heap)

    def discard(self, item: str) -> None:
        """Remove the item if it is there."""
        self._live.pop(item, None)

    def peek(self) -> str | None:
        """The item with the smallest key, or None."""
        while self._heap:
            key, item = self._heap[0]
            if self._live.get(item) is key:
                return item
            heapq.heappop(self._heap)
        return None

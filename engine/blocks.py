"""Blocks of KV memory: who holds which.

A block is room for the K and V of ``block_tokens`` consecutive tokens. The scheduler
sees memory only through BlockSpace, so that it need not know whether blocks are
handed out from a free list or found again by their content.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.request import is_int, require


class NoCapacity(Exception):
    """Fewer blocks are free than are needed; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What ``allocate`` found.

    Attributes:
        cached_tokens: leading tokens whose K and V the blocks already hold.
    """

    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a prefix cache knows of a request's tokens before it has a table.

    Attributes:
        tokens: leading tokens whose K and V would be there.
        held: the blocks of those that others hold: they would cost nothing.
        coming: tokens after those that are being computed for other requests, and will be
            found; 0 if they are less than half of what is left.
    """

    tokens: int = 0
    held: tuple[int, ...] = ()
    coming: int = 0


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return how many blocks of ``block_tokens`` tokens hold ``tokens`` tokens."""
    return -(-tokens // block_tokens)


class BlockSpace(Protocol):
    """The scheduler's only view of memory. Every method is all or nothing."""

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def total_blocks(self) -> int:
        """Blocks there are."""
        ...

    @property
    def free_blocks(self) -> int:
        """Blocks that could be handed out now."""
        ...

    def allocate(self, id: int, tokens: Sequence[int]) -> Allocation:
        """Give ``id`` a table with room for all of ``tokens``.

        Raises:
            NoCapacity: too few blocks are free; ``id`` holds nothing.
        """
        ...

    def append_slot(self, id: int, total: int) -> None:
        """Grow the table of ``id`` until it has room for ``total`` tokens.

        Raises:
            NoCapacity: too few blocks are free; the table is as it was.
        """
        ...

    def release(self, id: int, computed: Sequence[int]) -> None:
        """Take back all blocks of ``id``, whose K and V exist for the tokens ``computed``."""
        ...

    def block_table(self, id: int) -> Sequence[int]:
        """Return the block ids of ``id`` in the order of its tokens; not to be changed."""
        ...


@runtime_checkable
class PrefixCache(BlockSpace, Protocol):
    """A BlockSpace in which one request can find what another one has computed."""

    def allocate(
        self, id: int, tokens: Sequence[int], salt: bytes = b"", reuse: bool = True
    ) -> Allocation:
        """As BlockSpace, and let the table begin with blocks that hold ``tokens`` already.

        Args:
            id: the request.
            tokens: all that it has so far; the last one is always left to compute.
            salt: requests with different salts find nothing of each other.
            reuse: if false nothing is found, and all is computed; others may find it later.

        Raises:
            NoCapacity: too few blocks are free; ``id`` holds nothing.
        """
        ...

    def look_up(self, tokens: Sequence[int], salt: bytes = b"") -> Found:
        """Say what ``allocate`` would find now; nothing is changed."""
        ...

    def computed(self, id: int, tokens: Sequence[int], upto: int) -> None:
        """Let others find the full blocks of ``id``, whose first ``upto`` tokens have K and V."""
        ...


class FreeListBlocks:
    """A BlockSpace that hands out the lowest free ids first and remembers no content.

    Invariant: every id is either in the free heap or in exactly one table.
    """

    def __init__(self, block_tokens: int, ids: Sequence[int]) -> None:
        """Own the blocks ``ids``, each with room for ``block_tokens`` tokens.

        Raises:
            InvalidParam: ``block_tokens`` is below 1, or an id is there twice.
        """
        require(is_int(block_tokens, 1), "block_tokens", block_tokens, "an integer from 1")
        require(len(set(ids)) == len(ids), "ids", ids, "distinct block ids")
        self._block_tokens = block_tokens
        self._free = sorted(ids)  # a sorted list is a heap
        self._total = len(self._free)
        self._tables: dict[int, list[int]] = {}

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        return self._block_tokens

    @property
    def total_blocks(self) -> int:
        """Blocks there are."""
        return self._total

    @property
    def free_blocks(self) -> int:
        """Blocks in no table."""
        return len(self._free)

    def allocate(self, id: int, tokens: Sequence[int]) -> Allocation:
        """Give ``id`` a table of ceil(len(tokens) / block_tokens) blocks.

        Raises:
            NoCapacity: too few blocks are free; ``id`` holds nothing.
            ValueError: ``id`` already has a table.
        """
        if id in self._tables:
            raise ValueError(f"request {id} already holds blocks")
        self._tables[id] = self._take(blocks_for(len(tokens), self._block_tokens))
        return Allocation()

    def append_slot(self, id: int, total: int) -> None:
        """Grow the table of ``id`` to ceil(total / block_tokens) blocks; O(1) if it has them.

        Raises:
            NoCapacity: too few blocks are free; the table is as it was.
            KeyError: ``id`` has no table.
        """
        table = self._tables[id]
        if total > len(table) * self._block_tokens:
            table += self._take(blocks_for(total, self._block_tokens) - len(table))

    def release(self, id: int, computed: Sequence[int]) -> None:
        """Take back all blocks of ``id``; what they hold is forgotten.

        Raises:
            KeyError: ``id`` has no table, so a second release cannot go unseen.
        """
        for block in self._tables.pop(id):
            heapq.heappush(self._free, block)

    def block_table(self, id: int) -> Sequence[int]:
        """Return the block ids of ``id`` in the order of its tokens; not to be changed.

        Raises:
            KeyError: ``id`` has no table.
        """
        return self._tables[id]

    def _take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise NoCapacity(f"{count} blocks are needed, {len(self._free)} are free")
        return [heapq.heappop(self._free) for _ in range(count)]

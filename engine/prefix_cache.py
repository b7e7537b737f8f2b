"""BlockManager: a BlockSpace that finds full blocks again by their content.

A block whose K and V are computed for all its tokens gets a name, which says what it holds
and what came before it (:mod:`engine.prefix_hash`). A request whose tokens begin with those
of named blocks takes these blocks as they are, shares them, and never writes to them. When
nobody holds a named block any more it stays, and is given to others only when no unused
block is left: the one that was held last the longest ago goes first.

The idea is that of PagedAttention's shared blocks (Kwon et al., SOSP 2023) and of
RadixAttention (Zheng et al., SGLang, NeurIPS 2024), with names in place of a tree.

Invariants between calls:
- Every block is in exactly one state: unused, held (in one table or more), or cached
  (named, in no table).
- A name has one block. A request that computed the same content in a block of its own keeps
  that to itself; and what it computes after it stays unnamed too. So whoever holds a named
  block holds, before it in its table, the block with the name that its name is made from.
- Hence the order of eviction, last held first and the end of a table before its beginning,
  takes every block before the one that it depends on.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass

from engine.block_names import BlockNames
from engine.blocks import Allocation, Found, NoCapacity, blocks_for
from engine.coming import Coming
from engine.prefix_hash import LastNames, names_after
from engine.request import is_int, require


class BooksBroken(Exception):
    """The blocks do not add up; its message says where."""


@dataclass(slots=True)
class _Chain:
    """What is known of the blocks of one table.

    Attributes:
        names: the root, then the name of each full block, as far as they were worked out.
        named: leading blocks of the table that are found under their names.
        open: the next full block may be named; not after a block that another one is found for.
    """

    names: list[bytes]
    named: int
    open: bool = True


class BlockManager:
    """A BlockSpace with a prefix cache. Unused blocks go first, lowest id first."""

    def __init__(
        self, block_tokens: int, ids: Sequence[int], depths: Container[int] | None = None
    ) -> None:
        """Own the blocks ``ids``, each with room for ``block_tokens`` tokens.

        Args:
            block_tokens: tokens in a block.
            ids: of the blocks.
            depths: which blocks of a sequence, the first being 1, `take_events` and
                `held_prefixes` tell of; None: all.

        Raises:
            InvalidParam: ``block_tokens`` is below 1, or an id is there twice.
        """
        require(is_int(block_tokens, 1), "block_tokens", block_tokens, "an integer from 1")
        require(len(set(ids)) == len(ids), "ids", ids, "distinct block ids")
        self._block_tokens = block_tokens
        self._unused = sorted(ids)  # a sorted list is a heap
        self._total = len(self._unused)
        self._tables: dict[int, list[int]] = {}
        self._chains: dict[int, _Chain] = {}
        self._holders: dict[int, int] = {}
        self._named = BlockNames(depths)
        # In order of eviction. A dict that is emptied from the front is searched through what
        # was there before it comes to its first key.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._coming = Coming()
        self._names = LastNames(block_tokens)

    # ---- as every BlockSpace --------------------------------------------------------

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
        """Blocks in no table: unused and cached ones."""
        return len(self._unused) + len(self._cached)

    @property
    def cached_blocks(self) -> int:
        """Blocks in no table that are kept for what they hold."""
        return len(self._cached)

    def allocate(
        self, id: int, tokens: Sequence[int], salt: bytes = b"", reuse: bool = True
    ) -> Allocation:
        """Give ``id`` a table of ceil(len(tokens) / block_tokens) blocks.

        Its beginning is the longest chain of blocks that are found for ``tokens``, but for
        the last token, which is left to compute. The other blocks are nobody else's.

        Args:
            id: the request.
            tokens: all that it has so far.
            salt: requests with different salts find nothing of each other.
            reuse: if false nothing is found, and all is computed; others may find it later.

        Raises:
            NoCapacity: too few blocks are free; ``id`` holds nothing, and nothing was evicted.
            ValueError: ``id`` already has a table.
        """
        if id in self._tables:
            raise ValueError(f"request {id} already holds blocks")
        names = self._names.of(tokens, salt)
        hits = self._find(names, tokens) if reuse else []
        fresh = blocks_for(len(tokens), self._block_tokens) - len(hits)
        # A cached block that is found is free no more, so it cannot be handed out as well.
        idle = sum(block in self._cached for block in hits)
        self._require_free(fresh, self.free_blocks - idle)
        for block in hits:
            self._cached.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1
        self._tables[id] = hits + self._take(fresh)
        self._chains[id] = _Chain(list(names), len(hits))
        self._coming.announce(id, self._named.missing(names[len(hits) + 1 :]))
        return Allocation(len(hits) * self._block_tokens)

    def append_slot(self, id: int, total: int) -> None:
        """Grow the table of ``id`` to ceil(total / block_tokens) blocks; O(1) if it has them.

        Raises:
            NoCapacity: too few blocks are free; the table is as it was.
            KeyError: ``id`` has no table.
        """
        table = self._tables[id]
        if total > len(table) * self._block_tokens:
            fresh = blocks_for(total, self._block_tokens) - len(table)
            self._require_free(fresh, self.free_blocks)
            table += self._take(fresh)

    def release(self, id: int, computed: Sequence[int]) -> None:
        """Take back all blocks of ``id``; the full ones among ``computed`` can be found again.

        Raises:
            KeyError: ``id`` has no table, so a second release cannot go unseen.
        """
        self.computed(id, computed, len(computed))
        chain = self._chains.pop(id)
        self._withdraw(id, chain)
        for block in reversed(self._tables.pop(id)):
            left = self._holders[block] - 1
            if left:
                self._holders[block] = left  # in its place in the order, see held_prefixes
                continue
            del self._holders[block]
            if block in self._named:
                self._cached[block] = None
            else:
                heapq.heappush(self._unused, block)

    def block_table(self, id: int) -> Sequence[int]:
        """Return the block ids of ``id`` in the order of its tokens; not to be changed.

        Raises:
            KeyError: ``id`` has no table.
        """
        return self._tables[id]

    # ---- as a prefix cache ----------------------------------------------------------

    def look_up(self, tokens: Sequence[int], salt: bytes = b"") -> Found:
        """Say what ``allocate`` would find now; nothing is changed.

        To ask again about the same tokens costs no hashing.
        """
        names = self._names.of(tokens, salt)
        hits = self._find(names, tokens)
        left = len(tokens) - len(hits) * self._block_tokens
        coming = 0
        if self._coming:
            last = (len(tokens) - 1) // self._block_tokens
            coming = self._coming.leading(names[len(hits) + 1 : last + 1]) * self._block_tokens
        return Found(
            tokens=len(hits) * self._block_tokens,
            held=tuple(block for block in hits if block in self._holders),
            # Waiting is worth it for what it saves, not for the few tokens that all chats share.
            coming=coming if 2 * coming >= left else 0,
        )

    def computed(self, id: int, tokens: Sequence[int], upto: int) -> None:
        """Let others find the full blocks of ``id`` below ``upto``.

        Args:
            id: a request with a table.
            tokens: what was allocated for, and what came since.
            upto: tokens whose K and V exist.

        Raises:
            KeyError: ``id`` has no table.
        """
        chain, size = self._chains[id], self._block_tokens
        full = upto // size
        if not chain.open or full <= chain.named:
            return
        table, names = self._tables[id], chain.names
        if full >= len(names):
            known = (len(names) - 1) * size
            names += names_after(names[-1], tokens[known : full * size], size)
        while chain.named < full:
            block, name = table[chain.named], names[chain.named + 1]
            if not self._named.give(block, name, chain.named + 1):
                chain.open = False
                self._withdraw(id, chain)
                return
            self._coming.withdraw(id, (name,))
            chain.named += 1

    def take_events(self) -> tuple[list[int], list[int]]:
        """Return the hints of blocks that can be found since the last call, or no more.

        A block that came and went in between is in neither list, so the log never holds
        more than there are blocks, twice.
        """
        return self._named.take_events()

    def held_prefixes(self, most: int) -> list[int]:
        """Return the hints of blocks that can be found; ``take_events`` begins anew.

        Args:
            most: how many at most. Those that are evicted last come first, so each one comes
                after the block that it depends on.
        """
        # A held block has been held for as long as those that depend on it, or longer.
        return self._named.hints(itertools.chain(self._holders, reversed(self._cached)), most)

    def audit(self) -> None:
        """Check that the books add up, in time that grows with the blocks there are.

        Raises:
            BooksBroken: with what was found.
        """
        held: dict[int, int] = {}
        for id, table in self._tables.items():
            names, named = self._chains[id].names, self._chains[id].named
            for place, block in enumerate(table):
                held[block] = held.get(block, 0) + 1
                if place < named and self._named.block(names[place + 1]) != block:
                    raise BooksBroken(f"block {block} of request {id} has lost its name")
        if held != self._holders:
            raise BooksBroken(f"the tables hold {held}, the books say {self._holders}")
        everywhere = [*self._unused, *held, *self._cached]
        if len(everywhere) != self._total or len(set(everywhere)) != self._total:
            raise BooksBroken(
                f"{len(self._unused)} unused, {len(held)} held and {len(self._cached)} cached "
                f"blocks are not the {self._total} there are"
            )
        if fault := self._named.fault(self._unused, self._cached):
            raise BooksBroken(fault)
        if not self._coming.ids() <= set(self._tables):
            raise BooksBroken("blocks are said to come that nobody computes")

    # ---- parts ----------------------------------------------------------------------

    def _find(self, names: Sequence[bytes], tokens: Sequence[int]) -> list[int]:
        """Return the longest chain of blocks for all but the last of ``tokens``."""
        hits: list[int] = []
        last = (len(tokens) - 1) // self._block_tokens
        for name in names[1 : last + 1]:
            block = self._named.block(name)
            if block is None:
                break
            hits.append(block)
        return hits

    def _withdraw(self, id: int, chain: _Chain) -> None:
        """Announce nothing of a table any more."""
        self._coming.withdraw(id, chain.names[chain.named + 1 :])

    def _require_free(self, count: int, free: int) -> None:
        if count > free:
            raise NoCapacity(f"{count} blocks are needed, {free} are free")

    def _take(self, count: int) -> list[int]:
        taken: list[int] = []
        for _ in range(count):
            block = heapq.heappop(self._unused) if self._unused else self._evict()
            self._holders[block] = 1
            taken.append(block)
        return taken

    def _evict(self) -> int:
        """Forget the cached block that was held last the longest ago."""
        block, _ = self._cached.popitem(last=False)
        self._named.forget(block)
        return block

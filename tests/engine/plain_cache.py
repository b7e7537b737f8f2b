"""The prefix cache's rules as plainly as they can be written, to compare the real one with.

What a block holds is the salt and all tokens up to the block's end, in full: no hashes, no
order of eviction that is kept, no counts. All is worked out anew when it is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Content = tuple[bytes, tuple[int, ...]]


@dataclass
class PlainCache:
    """Takes the calls of a BlockManager, and says which blocks each has to give."""

    block_tokens: int
    blocks: list[int]
    tables: dict[int, list[int]] = field(default_factory=dict)
    salts: dict[int, bytes] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    content: dict[int, Content] = field(default_factory=dict)
    released: dict[int, tuple[int, int]] = field(default_factory=dict)
    now: int = 0

    def held(self) -> set[int]:
        return {block for table in self.tables.values() for block in table}

    def free(self) -> list[int]:
        held = self.held()
        return [block for block in sorted(self.blocks) if block not in held]

    def need(self, tokens: int) -> int:
        return len(range(0, tokens, self.block_tokens))

    def find(self, tokens: Sequence[int], salt: bytes) -> list[int]:
        """The longest chain, which leaves at least one token to compute."""
        hits: list[int] = []
        for end in range(self.block_tokens, len(tokens), self.block_tokens):
            content = (salt, tuple(tokens[:end]))
            found = [block for block, known in self.content.items() if known == content]
            if not found:
                break
            hits += found
        return hits

    def allocate(
        self, id: int, tokens: Sequence[int], salt: bytes, reuse: bool
    ) -> list[int] | None:
        """Return the new table; None if it is refused."""
        hits = self.find(tokens, salt) if reuse else []
        count = self.need(len(tokens)) - len(hits)
        if count > len([block for block in self.free() if block not in hits]):
            return None
        self.tables[id], self.salts[id] = list(hits), salt
        self.tables[id] += self.take(count)
        return self.tables[id]

    def grow(self, id: int, total: int) -> list[int] | None:
        count = self.need(total) - len(self.tables[id])
        if count > len(self.free()):
            return None
        self.tables[id] += self.take(max(0, count))
        return self.tables[id]

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        for _ in range(count):
            free = [block for block in self.free() if block not in taken]
            unused = [block for block in free if block not in self.content]
            if unused:
                taken.append(unused[0])
                continue
            leaves = [block for block in free if not self.depended_on(block)]
            oldest = min(leaves, key=lambda block: self.released[block])
            del self.content[oldest]
            taken.append(oldest)
        return taken

    def depended_on(self, block: int) -> bool:
        salt, tokens = self.content[block]
        return any(
            other == salt and longer[: len(tokens)] == tokens and len(longer) > len(tokens)
            for other, longer in self.content.values()
        )

    def computed(self, id: int, tokens: Sequence[int], upto: int) -> None:
        for end in range(self.block_tokens, upto + 1, self.block_tokens):
            content = (self.salts[id], tuple(tokens[:end]))
            block = self.tables[id][end // self.block_tokens - 1]
            if any(known == content and one != block for one, known in self.content.items()):
                self.closed.add(id)
            if id in self.closed:
                return
            self.content[block] = content

    def release(self, id: int, tokens: Sequence[int]) -> None:
        self.computed(id, tokens, len(tokens))
        self.now += 1
        table = self.tables.pop(id)
        self.closed.discard(id)
        for place, block in enumerate(table):
            # The end of a table goes before its beginning.
            self.released[block] = (self.now, -place)

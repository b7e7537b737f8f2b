"""Prefix: what the router is told of a sequence, and what it takes to go on from there."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.prefix_hash import hint, names_after, root
from router.prefix_depths import thinned


@dataclass(frozen=True, slots=True)
class Prefix:
    """The hashes of a sequence of tokens.

    Attributes:
        told: as in `router.ticket.Ticket.prefix`.
        blocks: full blocks there are.
        last: name of the last of them, of all tokens up to its end; or of no tokens.
    """

    told: tuple[int, ...]
    blocks: int
    last: bytes

    def extended(self, tokens: Sequence[int], block_tokens: int) -> tuple[int, ...]:
        """Return what is told of the sequence with more tokens at its end.

        It costs as much as they do, however long the sequence is: it is needed in a hurry, and
        for all sequences of a replica at once, when that has died.

        Args:
            tokens: those behind the full blocks.
            block_tokens: as it was hashed with.
        """
        hints = [hint(name) for name in names_after(self.last, tokens, block_tokens)]
        return self.told + thinned(hints, self.blocks)


def prefix_of(tokens: Sequence[int], block_tokens: int, salt: bytes) -> Prefix:
    """Return the prefix of a prompt; 65 µs for 1,000 tokens.

    Args:
        tokens: of the prompt.
        block_tokens: of the replicas.
        salt: as the engine is given it: the hashes are to be those of the replicas.
    """
    start = root(salt)
    names = names_after(start, tokens, block_tokens)
    told = thinned([hint(name) for name in names])
    return Prefix(told, len(names), names[-1] if names else start)

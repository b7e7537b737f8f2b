"""Names for full blocks: a hash over a block's tokens and all that came before them.

Two blocks have the same name exactly if they hold the same tokens after the same tokens
under the same salt, so K and V found by name are those that would be computed. A name is
a BLAKE2b digest (RFC 7693) of 16 bytes: nobody can make two prompts share one by choice,
so tokens need not be compared when a name is found.

Where only a hint is needed, such as which replica may hold a prompt's beginning, the
first 8 bytes of a name are enough; they travel as an integer.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

NAME_BYTES: Final = 16
"""Bytes of a name."""


def root(salt: bytes = b"") -> bytes:
    """Return the name of "no tokens yet" under a salt; other salts share no names."""
    return blake2b(salt, digest_size=NAME_BYTES, person=b"prefix root").digest()


def name_after(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the name of a full block.

    Args:
        parent: name of the block before it, or the root.
        tokens: all that the block holds.
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=NAME_BYTES).digest()


def hint(name: bytes) -> int:
    """Return 64 bits of a name, from 0 to 2**64 - 1."""
    return int.from_bytes(name[:8], "little")


def chain(tokens: Sequence[int], block_tokens: int, salt: bytes = b"") -> list[int]:
    """Return the hints of all full blocks of ``tokens``, from the first on.

    Args:
        tokens: token ids; what is left over after the last full block has no name.
        block_tokens: tokens in a block.
        salt: as the request has it.
    """
    hints: list[int] = []
    name = root(salt)
    for begin in range(0, len(tokens) - block_tokens + 1, block_tokens):
        name = name_after(name, tokens[begin : begin + block_tokens])
        hints.append(hint(name))
    return hints

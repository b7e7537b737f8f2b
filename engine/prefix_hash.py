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


def salt_of(*parts: str) -> bytes:
    """Return the salt of a request from what it must share with whom it may share blocks.

    Args:
        parts: each as it is; an empty one differs from any other. All empty is no salt.
    """
    if not any(parts):
        return b""
    # JSON can spell halves of characters, which have no UTF-8.
    texts = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def root(salt: bytes = b"") -> bytes:
    """Return the name of "no tokens yet" under a salt; other salts share no names."""
    return blake2b(salt, digest_size=NAME_BYTES, person=b"prefix root").digest()


def names_after(parent: bytes, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """Return the names of the full blocks that ``tokens`` make up.

    Args:
        parent: name of the block before them, or the root.
        tokens: token ids from 0 to 2**63 - 1; what is left over has no name.
        block_tokens: tokens in a block.
    """
    names: list[bytes] = []
    data, size = array("q", tokens).tobytes(), 8 * block_tokens
    for end in range(size, len(data) + 1, size):
        parent = blake2b(parent + data[end - size : end], digest_size=NAME_BYTES).digest()
        names.append(parent)
    return names


class LastNames:
    """Names of the tokens that were asked about last, which are often asked about again.

    The head of a queue is looked up in every step until it fits. To compare its tokens costs
    a small part of hashing them.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._salt = b""
        self._tokens: list[int] = []
        self._names = [root()]

    def of(self, tokens: Sequence[int], salt: bytes) -> Sequence[bytes]:
        """Return the root and the name of each full block of ``tokens``."""
        if salt != self._salt or self._tokens != tokens:
            start = root(salt)
            self._names = [start, *names_after(start, tokens, self._block_tokens)]
            self._salt, self._tokens = salt, list(tokens)
        return self._names


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
    return [hint(name) for name in names_after(root(salt), tokens, block_tokens)]

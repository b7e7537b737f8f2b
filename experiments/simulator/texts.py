"""Texts: the tokens of prompts, made when they are needed, and equal where prompts share them."""

from engine.prefix_hash import salt_of
from experiments.loads.load import Arrival, Load

_OWN = 1 << 61  # above all tokens of pieces
_LONGEST = 24  # bits of a place within a piece or a prompt


class Texts:
    """Tokens for a replica's prefix cache; without one, any will do.

    A prompt's tokens are those of its pieces, and after them its own. No tokenizer has so many,
    but names of blocks can be made of them, which is all that anybody does here.
    """

    def __init__(self, load: Load, *, matter: bool, apart: bool = False) -> None:
        """Know a load.

        Args:
            load: whose prompts.
            matter: whether anybody looks at the tokens.
            apart: a tenant's prompts are found by nobody else.
        """
        self._apart = apart
        self._size = load.piece_tokens
        self._matter = matter
        self._known: dict[int, int] = {}
        longest = max((one.prompt_tokens for one in load.arrivals), default=1)
        self._blank = [0] * longest

    def salt(self, arrival: Arrival) -> bytes:
        """Return what a request has in common with whom it shares cached blocks."""
        return salt_of(arrival.tenant, "") if self._apart else b""

    def prompt(self, index: int, arrival: Arrival) -> list[int]:
        """Return the tokens of a prompt; a list that the caller may keep.

        Args:
            index: of the request in the load.
            arrival: the request.
        """
        length = arrival.prompt_tokens
        if not self._matter:
            return self._blank[:length]
        tokens: list[int] = []
        for piece in arrival.pieces[: -(-length // self._size)]:
            number = self._known.setdefault(piece, len(self._known))
            first = number << _LONGEST
            tokens += range(first, first + self._size)
        del tokens[length:]
        first = _OWN + (index << _LONGEST)
        tokens += range(first + len(tokens), first + length)
        return tokens

"""How tokens are shown one by one, as log-probabilities need it."""

import codecs
from typing import Any

from engine.text import TokenBytes


class TokenNames:
    """What each token of a vocabulary is called, and the bytes that it stands for.

    Args:
        tokenizer: a fast tokenizer of transformers.

    Raises:
        UnsupportedTokenizer: its text cannot be told token by token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokens = TokenBytes(tokenizer)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content.encode() for id, token in added.items()}
        # Threads may fill it twice, with the same values.
        self._known: dict[tuple[int, bool], tuple[str, list[int]]] = {}

    def text_of(self, token: int, first: bool) -> bytes | None:
        """What a token adds to a text; None if nothing, as special ones do."""
        return self._tokens.of(token, first)

    def of(self, token: int, first: bool) -> tuple[str, list[int]]:
        """Return a token's name and bytes.

        A token that is a part of a character has no text of its own; its name then is
        ``bytes:`` and its bytes as ``\\xe2``, as with OpenAI, so that no two look the same.

        Args:
            token: its id.
            first: no token before it added anything to the text.
        """
        known = self._known.get((token, first))
        if known is None:
            known = self._known[token, first] = self._find(token, first)
        return known

    def _find(self, token: int, first: bool) -> tuple[str, list[int]]:
        raw = self._tokens.of(token, first)
        if raw is None:
            raw = self._special.get(token, b"")
        try:
            return raw.decode(), list(raw)
        except UnicodeDecodeError:
            return "bytes:" + raw.decode(errors="backslashreplace"), list(raw)


class Cursor:
    """Where in a text its tokens begin, whatever is held back of it.

    Args:
        names: of the vocabulary.
        at: characters that stand before the first token.
    """

    def __init__(self, names: TokenNames, at: int = 0) -> None:
        self._names = names
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at = at
        self._first = True

    def pass_over(self, token: int) -> tuple[int, bool]:
        """Return where the token begins, and whether it is the text's first."""
        at, first = self._at, self._first
        added = self._names.text_of(token, first)
        if added is not None:
            self._first = False
            self._at += len(self._bytes.decode(added))
        return at, first

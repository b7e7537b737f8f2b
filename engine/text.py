"""Text: token by token, what a client may already see of an answer.

What leaves here is never taken back: no half character, nothing that may still become a
stop string.  The text is a function of the tokens alone, however they are cut into steps,
requests or lives, and the cost of a token does not grow with the answer.

The tokenizers library has a DecodeStream for this.  It decodes a window of recent tokens
and takes the difference, which loses an unfinished tail at the end, raises where bytes
make no characters, and gets slower while they don't.  Here every token stands for bytes,
found once, and the bytes go through an incremental UTF-8 decoder.
"""

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from engine.stop_strings import StopMatcher

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Decoders under which a token adds the same text wherever it stands, but for the first.
_LOCAL = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}


class UnsupportedTokenizer(ValueError):
    """A tokenizer whose text cannot be told token by token.

    Attributes:
        decoders: the kinds of its decoders, as tokenizer.json names them.
    """

    def __init__(self, decoders: tuple[str, ...]) -> None:
        super().__init__(decoders)
        self.decoders = decoders

    def __str__(self) -> str:
        return f"cannot stream text from a tokenizer that decodes by {', '.join(self.decoders)}"


class TokenBytes:
    """What bytes each token of a vocabulary adds to a text; built once, shared by all.

    Equal to the tokenizer's own ``decode(..., skip_special_tokens=True)`` except, on
    purpose, for byte tokens like <0xE4> that make no character: there each wrong part
    becomes one U+FFFD, as for byte-level tokenizers, where ``decode`` would turn the whole
    run of byte tokens, good characters too, into U+FFFD and so take back what was sent.

    Args:
        tokenizer: of the tokenizers library, or one of transformers that wraps it.

    Attributes:
        whole: the text of tokens that begin and end at a character, unless they are the first;
            as far as they are known.

    Raises:
        UnsupportedTokenizer: its decoder looks beyond single tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer: Tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(id for id, token in added.items() if token.special)
        kinds = _decoders(self._tokenizer)
        self._byte_level = kinds == {"ByteLevel"}
        self._byte_fallback = "ByteFallback" in kinds
        if not self._byte_level and not kinds <= _LOCAL:
            raise UnsupportedTokenizer(tuple(sorted(kinds)))
        # Threads may fill these twice, with the same values.
        self.whole: dict[int, str] = {}
        self._first: dict[int, bytes | None] = {}
        self._later: dict[int, bytes | None] = {}
        self._before = 0 if self._byte_level else self._some_text_token()

    def of(self, token: int, first: bool) -> bytes | None:
        """The bytes that ``token`` adds; None if it is special or unknown: it adds nothing.

        Args:
            token: a token id.
            first: no token before it added anything, not even an empty text.
        """
        known = self._first if first else self._later
        try:
            return known[token]
        except KeyError:
            known[token] = found = self._find(token, first)
            return found

    def _find(self, token: int, first: bool) -> bytes | None:
        name = self._tokenizer.id_to_token(token)
        if name is None or token in self._special:
            return None
        if self._byte_level:
            # Characters outside the alphabet: a token that was added, and stands for itself.
            known = all(c in _BYTE_OF for c in name)
            return bytes(_BYTE_OF[c] for c in name) if known else name.encode()
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(name)):
            value = int(byte[1], 16)
            if value >= 0x80:  # below, a byte is a character and decoded like any other
                return bytes([value])
        if first:
            return self._decode(token)
        return self._decode(self._before, token)[len(self._decode(self._before)) :]

    def _decode(self, *tokens: int) -> bytes:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True).encode()

    def _some_text_token(self) -> int:
        """A token to stand before others, so that they are not the first."""
        for token in range(self._tokenizer.get_vocab_size(with_added_tokens=False)):
            if self._decode(token).isalnum():
                return token
        raise UnsupportedTokenizer(())


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one token adds to what the client sees.

    Attributes:
        text: to be sent now, maybe empty.
        stopped: a stop string is complete; nothing comes after ``text``.
    """

    text: str
    stopped: bool


class Detokenizer:
    """The text of one answer, as far as it is certain.

    The joined texts of all pushes and the flush are the tokenizer's decoding of all tokens,
    cut off before the stop string.  The stop string that is complete first ends the answer;
    of those complete at the same character, the one that starts first.  Special tokens are
    skipped.

    ``generated`` resumes an answer: its tokens are replayed silently.  What a life has sent
    is a function of the tokens it was pushed, so the replay ends with the same characters
    held back, and what follows is exactly what the first life would have sent next.

    Args:
        tokens: of the model's tokenizer.
        stop: stop strings, not empty.
        generated: tokens already pushed elsewhere.
        min_tokens: tokens before a stop string may end the answer: one that is complete
            within them is text like any other.

    Raises:
        ValueError: a stop string is empty.
    """

    __slots__ = ("_bytes", "_clear", "_early", "_emitted", "_first", "_matcher", "_tokens")

    def __init__(
        self,
        tokens: TokenBytes,
        stop: Sequence[str] = (),
        generated: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self._tokens = tokens
        self._early = min_tokens
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(stop)
        self._first = True
        # There are no stop strings, and no half character is held back.
        self._clear = False
        self._emitted = 0
        for token in generated:
            self.feed(token)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found, maybe already in ``generated``."""
        return self._matcher.stopped

    @property
    def emitted_chars(self) -> int:
        """Characters (code points) sent in all lives."""
        return self._emitted

    def push(self, token: int) -> TextDelta:
        """Add one token; after a stop string nothing is added any more."""
        return TextDelta(self.feed(token), self._matcher.stopped)

    def feed(self, token: int) -> str:
        """Add one token as :meth:`push` does; return only the text."""
        if self._clear and (text := self._tokens.whole.get(token)) is not None:
            self._emitted += len(text)
            return text
        text = ""
        matcher = self._matcher
        if not matcher.stopped:
            added = self._tokens.of(token, self._first)
            if added is not None:
                decoded = self._bytes.decode(added)
                text = matcher.feed(decoded, self._early <= 0)
                self._emitted += len(text)
                if matcher.none:
                    self._note(token, decoded)
                self._first = False
            self._early -= 1
        return text

    def _note(self, token: int, decoded: str) -> None:
        """Find out whether the next token can be told by a look into a table."""
        was_clear, self._clear = self._clear, not self._bytes.getstate()[0]
        if was_clear and self._clear and "\ufffd" not in decoded:
            self._tokens.whole[token] = decoded

    def flush(self) -> str:
        """What is still held back, when no token follows; a half character is U+FFFD.

        Empty after a stop string, and on a second call.
        """
        if self._matcher.stopped:
            return ""
        # The last token may have been an early one; what completes it belongs to it.
        text = self._matcher.feed(self._bytes.decode(b"", True), self._early < 0)
        text += self._matcher.rest()
        self._emitted += len(text)
        return text


def _decoders(tokenizer: Tokenizer) -> set[str]:
    """Kinds of a tokenizer's decoders, sequences opened, as tokenizer.json names them."""
    if tokenizer.decoder is None:
        return set()
    state = json.loads(tokenizer.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    # Whether the end of a text is stripped is known only at the end.
    return {"Strip at the end" if step.get("stop") else step["type"] for step in steps}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, reversed.

    Printable bytes of Latin-1 stand for themselves; the others, in order, for the code
    points from 256 on (Radford et al., "Language models are unsupervised multitask
    learners", 2019, in the code that came with it).
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in sorted(own)} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()

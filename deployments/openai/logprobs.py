"""Log-probabilities in the two shapes that OpenAI has for them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any

from deployments.openai.tokens import Cursor, TokenNames
from engine.submission import Detail, TokenLogprobs

# JSON has no infinity; far below what any token that can be chosen has.
_LEAST = -9999.0


# Tokens with 20 others beside each that are spelt in some milliseconds.
_MANY = 64


class Ledger(ABC):
    """The log-probabilities of one choice, in the order of its tokens; spelt when taken."""

    def __init__(self) -> None:
        self._noted: list[Detail] = []
        self._tokens = 0

    def add(self, detail: Detail) -> None:
        """Note what came with a delta."""
        self._noted.append(detail)
        self._tokens += len(detail.prompt_logprobs) + len(detail.logprobs)

    @property
    def large(self) -> bool:
        """Whether ``take`` and what follows would hold up an event loop."""
        return self._tokens > _MANY

    def take(self) -> dict[str, Any] | None:
        """Return the ``logprobs`` object of what was noted since the last time, if anything."""
        noted, self._noted = self._noted, []
        some, self._tokens = self._tokens, 0
        return self._spelt(noted) if some else None

    @abstractmethod
    def _spelt(self, noted: Sequence[Detail]) -> dict[str, Any]:
        """Return the ``logprobs`` object of what was noted."""


class ChatLedger(Ledger):
    """As chat completions have them: an object for each token.

    Args:
        names: of the vocabulary.
    """

    def __init__(self, names: TokenNames) -> None:
        super().__init__()
        self._names = names
        self._cursor = Cursor(names)

    def _spelt(self, noted: Sequence[Detail]) -> dict[str, Any]:
        content = []
        for token in chain.from_iterable(detail.logprobs for detail in noted):
            _, first = self._cursor.pass_over(token.token)
            entry = self._entry(token.token, token.logprob, first)
            entry["top_logprobs"] = [self._entry(id, value, first) for id, value in token.top]
            content.append(entry)
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float, first: bool) -> dict[str, Any]:
        name, raw = self._names.of(token, first)
        return {"token": name, "logprob": _finite(logprob), "bytes": raw}


class CompletionLedger(Ledger):
    """As completions have them: four lists side by side.

    ``text_offset`` counts characters of the text as it is generated: what a stop string
    cuts off, or holds back for a while, has its place too.

    Args:
        names: of the vocabulary.
        prompt: the prompt's tokens.
        echo: its text, if that stands before the answer.
    """

    def __init__(self, names: TokenNames, prompt: Sequence[int] = (), echo: str = "") -> None:
        super().__init__()
        self._names = names
        self._prompt = prompt
        self._cursor = Cursor(names, len(echo))

    def _spelt(self, noted: Sequence[Detail]) -> dict[str, Any]:
        lists = _Lists()
        for detail in noted:
            if detail.prompt_logprobs:
                cursor = Cursor(self._names)
                for id, told in zip(self._prompt, detail.prompt_logprobs, strict=True):
                    self._add(lists, id, told, *cursor.pass_over(id))
            for token in detail.logprobs:
                self._add(lists, token.token, token, *self._cursor.pass_over(token.token))
        return lists.body()

    def _add(
        self, lists: "_Lists", id: int, token: TokenLogprobs | None, at: int, first: bool
    ) -> None:
        name, _ = self._names.of(id, first)
        lists.tokens.append(name)
        lists.offsets.append(at)
        if token is None:
            lists.logprobs.append(None)
            lists.top.append(None)
            return
        lists.logprobs.append(_finite(token.logprob))
        top: dict[str, float] = {}
        # Of two tokens with one name the likelier; the token itself is always there.
        for other, value in (*token.top, (id, token.logprob)):
            top.setdefault(self._names.of(other, first)[0], _finite(value))
        lists.top.append(top)


class _Lists:
    """The lists of ``logprobs``, side by side."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.logprobs: list[float | None] = []
        self.top: list[dict[str, float] | None] = []
        self.offsets: list[int] = []

    def body(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        }


def _finite(logprob: float) -> float:
    # Not max(): that lets a NaN through.
    return logprob if logprob > _LEAST else _LEAST

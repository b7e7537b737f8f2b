"""Log-probabilities in the two shapes that OpenAI has for them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from deployments.openai.tokens import Cursor, TokenNames
from engine.submission import Detail, TokenLogprobs

# JSON has no infinity; far below what any token that can be chosen has.
_LEAST = -9999.0


class Ledger(ABC):
    """The log-probabilities of one choice, in the order of its tokens."""

    @abstractmethod
    def add(self, detail: Detail) -> None:
        """Note what came with a delta."""

    @abstractmethod
    def take(self) -> dict[str, Any] | None:
        """Return the ``logprobs`` object of what was noted since the last time, if anything."""


class ChatLedger(Ledger):
    """As chat completions have them: an object for each token.

    Args:
        names: of the vocabulary.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._cursor = Cursor(names)
        self._content: list[dict[str, Any]] = []

    def add(self, detail: Detail) -> None:
        for token in detail.logprobs:
            _, first = self._cursor.pass_over(token.token)
            entry = self._entry(token.token, token.logprob, first)
            entry["top_logprobs"] = [self._entry(id, value, first) for id, value in token.top]
            self._content.append(entry)

    def take(self) -> dict[str, Any] | None:
        if not self._content:
            return None
        content, self._content = self._content, []
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
        self._names = names
        self._prompt = prompt
        self._cursor = Cursor(names, len(echo))
        self._lists = _Lists()

    def add(self, detail: Detail) -> None:
        if detail.prompt_logprobs:
            cursor = Cursor(self._names)
            for id, token in zip(self._prompt, detail.prompt_logprobs, strict=True):
                self._note(id, token, *cursor.pass_over(id))
        for token in detail.logprobs:
            self._note(token.token, token, *self._cursor.pass_over(token.token))

    def take(self) -> dict[str, Any] | None:
        if not self._lists.tokens:
            return None
        lists, self._lists = self._lists, _Lists()
        return lists.body()

    def _note(self, id: int, token: TokenLogprobs | None, at: int, first: bool) -> None:
        name, _ = self._names.of(id, first)
        lists = self._lists
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

"""What became of one try at one dish, as its client saw it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Attempt:
    """One HTTP request and all that came of it.

    Attributes:
        name: its x-request-id.
        dish: its number on the menu.
        stream: whether it was to be streamed.
        began, ended: on this process's monotonic clock, in seconds.
        status, headers: of the answer; None if there was none.
        texts, finishes, logprobs: of each choice, as far as they came.
        tokens: as the answer's usage says.
        error: the envelope's inside, of an answer or of an event in a stream.
        done: a stream's [DONE] came, and last.
        broken: how the connection broke, if it did.
        left: the client left of its own will.
        hung: nothing had come for far too long, and the client gave up.
        limit_s: the time limit that it was given, if any.
    """

    name: str
    dish: int
    stream: bool
    began: float
    ended: float = 0.0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    tokens: int | None = None
    error: Mapping[str, Any] | None = None
    done: bool = False
    broken: str | None = None
    left: bool = False
    hung: bool = False
    limit_s: float | None = None

    @property
    def refused(self) -> bool:
        """It was turned away for now, before its stream began or, with an event, after that."""
        later = self.error is not None and self.error.get("code") in ("queue_full", "no_replica")
        return self.status in (429, 503) or (self.stream and later)

    @property
    def expired(self) -> bool:
        """It was given up at its time limit."""
        return self.error is not None and self.error.get("code") == "deadline_exceeded"

    @property
    def complete(self) -> bool:
        """It ended as a success does."""
        ended = self.done if self.stream else self.broken is None
        return self.status == 200 and ended and self.error is None

    def read_answer(self, content: bytes) -> None:
        """Take in the body of an answer that is not a stream."""
        self._read(content)

    def read_line(self, line: str) -> bool:
        """Take in a line of a stream; False if it carried nothing, as a keep-alive does."""
        if not line.startswith("data: "):
            return False
        if self.done:
            self.error = {"after [DONE]": line[:200]}
        elif line == "data: [DONE]":
            self.done = True
        else:
            self._read(line.removeprefix("data: "))
        return True

    def _read(self, text: str | bytes) -> None:
        try:
            body = json.loads(text)
        except ValueError:
            self.error = {"not JSON": repr(text[:200])}
            return
        self.error = body.get("error", self.error)
        for choice in body.get("choices", ()):
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            if choice["finish_reason"] is not None:
                self.finishes[index] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                self.logprobs.setdefault(index, {}).setdefault(name, []).extend(values)
        if body.get("usage"):
            self.tokens = body["usage"]["completion_tokens"]

    def __str__(self) -> str:
        kind = "streamed" if self.stream else "whole"
        came = sum(map(len, self.texts.values()))
        return (
            f"{self.name} (dish {self.dish}, {kind}, {self.ended - self.began:.1f} s): "
            f"status {self.status}, {came} characters, finishes {self.finishes}, "
            f"[DONE] {self.done}, error {self.error}, broken {self.broken}, "
            f"headers {dict(self.headers)}"
        )

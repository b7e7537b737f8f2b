"""Guides whose grammars say for each place of the answer which tokens may stand there."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.request import InvalidParam


class ScriptedMatcher:
    """One answer; it keeps what the engine told it, and refuses what it did not allow."""

    def __init__(self, places: list[set[int]], vocab: int, eos: int, closes: bool) -> None:
        self._places, self._vocab, self._eos = places, vocab, eos
        self._closes = closes
        self.pushed: list[int] = []
        self.finished = False
        self.fails = ""

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        if self.fails == "mask":
            raise RuntimeError("no mask")
        words = np.zeros(-(-self._vocab // 32), dtype=np.uint32)
        for token in self._allowed():
            words[token // 32] |= np.uint32(1 << token % 32)
        return words.view(np.int32)

    def push(self, token: int) -> None:
        if self.fails == "push" or token not in self._allowed():
            raise RuntimeError(f"no {token} here")
        self.pushed.append(token)
        over = len(self.pushed) - len(self._places)
        self.finished = over > 0 or (over == 0 and self._closes)

    def _allowed(self) -> set[int]:
        at = len(self.pushed)
        return self._places[at] if at < len(self._places) else {self._eos}


class ScriptedGuides:
    """``"5|6 7"`` is 5 or 6, then 7, and then it is over; after ``"5 6 $"`` comes the end token."""

    def __init__(self, vocab: int, eos: int) -> None:
        self._vocab, self._eos = vocab, eos
        self.made: list[ScriptedMatcher] = []

    def matcher(self, grammar: str, generated: Sequence[int] = ()) -> ScriptedMatcher:
        words = grammar.split()
        closes = words[-1] != "$"
        try:
            places = [{int(token) for token in word.split("|")} for word in words if word != "$"]
        except ValueError:
            raise InvalidParam("grammar", grammar, "a script") from None
        matcher = ScriptedMatcher(places, self._vocab, self._eos, closes)
        for token in generated:
            matcher.push(token)
        self.made.append(matcher)
        return matcher

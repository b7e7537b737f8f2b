"""Prompt scores: log-probabilities of a prompt, computed for one choice and told by all."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from deployments.messages import Event
from deployments.order import Failed, Refused
from engine.submission import Detail, TokenLogprobs

Emit: TypeAlias = Callable[[Event | Refused | Failed], None]


class PromptScores:
    """Hands on the events of the choices of one prompt, as if each had scored it itself.

    Invariant: of a choice nothing is handed on before its prompt's scores, which go with its
    first event; so until the first choice begins, those of the others wait.

    Args:
        put: takes an event of the choice with this index.
    """

    def __init__(self, put: Callable[[int, Event | Refused | Failed], None]) -> None:
        self._put = put
        self._scores: tuple[TokenLogprobs | None, ...] | None = None
        self._waiting: list[tuple[int, Event]] = []
        self._told: set[int] = set()

    def emit(self, index: int, *, leads: bool) -> Emit:
        """Return what takes the events of a choice; the one that leads has the scores."""
        return partial(self._lead if leads else self._follow, index)

    def _lead(self, index: int, event: Event | Refused | Failed) -> None:
        self._put(index, event)
        if self._scores is None and isinstance(event, tuple):
            detail = event[-1]
            self._scores = () if detail is None else detail.prompt_logprobs
            waiting, self._waiting = self._waiting, []
            for other, held in waiting:
                self._follow(other, held)

    def _follow(self, index: int, event: Event | Refused | Failed) -> None:
        if isinstance(event, tuple) and index not in self._told:
            if self._scores is None:
                self._waiting.append((index, event))
                return
            self._told.add(index)
            key, tokens, text, finish, error, detail = event
            detail = replace(detail or Detail(), prompt_logprobs=self._scores)
            event = (key, tokens, text, finish, error, detail)
        self._put(index, event)

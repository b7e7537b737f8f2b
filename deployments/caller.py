"""Caller: asks a guest's host over a lane, many questions at once."""

import asyncio
from functools import partial
from typing import Any

from deployments.lane import Lane
from deployments.messages import Ask, TakeBack, Told


class CallFailed(Exception):
    """What was asked for raised an error there, which is a bug; the message says which."""


class Caller:
    """Questions that wait for their answers.

    Args:
        lane: where they go.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._number = 0
        self._open: dict[int, asyncio.Future[Any]] = {}

    def call(self, method: str, *arguments: Any) -> "asyncio.Future[Any]":
        """Ask for the answer of a method there; who cancels it takes the question back.

        It raises `CallFailed`, or what `fail` was given.
        """
        self._number += 1
        number = self._number
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(partial(self._done, number))
        self._lane.send(Ask(number, method, arguments))
        return answer

    def told(self, message: Told) -> None:
        """An answer has come."""
        answer = self._open.get(message.number)
        if answer is None or answer.done():
            return
        if message.error:
            answer.set_exception(CallFailed(message.error))
        else:
            answer.set_result(message.value)

    def fail(self, error: Exception) -> None:
        """No answer will come to what is still open."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # it may be that nobody waits any more

    def _done(self, number: int, answer: "asyncio.Future[Any]") -> None:
        del self._open[number]
        if answer.cancelled():
            self._lane.send(TakeBack(number))

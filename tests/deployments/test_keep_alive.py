"""A word after a long silence, and none while there is talk."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.keep_alive import KeepAlive


class Clock:
    """An event loop's, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        entry = (when, call)
        self.due.append(entry)
        return SimpleNamespace(cancel=lambda: self.due.remove(entry))

    def pass_to(self, moment: float) -> None:
        while self.due and min(self.due, key=lambda entry: entry[0])[0] <= moment:
            entry = min(self.due, key=lambda entry: entry[0])
            self.due.remove(entry)
            self.now, call = entry
            call()
        self.now = moment


def test_silence_is_noticed_after_a_period_and_after_each_further_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, silences = Clock(), list[float]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    keep_alive = KeepAlive(5.0, lambda: silences.append(clock.now))
    for moment in (101.0, 104.0, 107.5):
        clock.pass_to(moment)
        keep_alive.heard()
    assert len(clock.due) == 1  # words set no timers
    clock.pass_to(120.0)
    assert silences == [112.5, 117.5]
    keep_alive.close()
    assert not clock.due

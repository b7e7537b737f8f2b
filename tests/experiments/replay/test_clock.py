"""Waiting for a time."""

import asyncio
import time

import pytest

from experiments.replay.clock import RealClock


async def test_it_is_not_before_its_time_when_the_event_loop_is_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds, slept = [100.0], list[float]()

    async def early(wanted: float) -> None:
        slept.append(wanted)
        seconds[0] += wanted / 2 if len(slept) < 3 else wanted

    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    monkeypatch.setattr(asyncio, "sleep", early)
    clock = RealClock()
    await clock.until(4.0)
    assert slept == [4.0, 2.0, 1.0]
    assert clock.now() == 4.0


async def test_a_time_that_was_is_not_waited_for() -> None:
    clock = RealClock()
    await clock.until(-1.0)
    assert clock.now() >= 0

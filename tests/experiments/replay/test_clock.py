"""Waiting for a time."""

import asyncio

import pytest

from experiments.replay.clock import RealClock


async def test_it_is_not_before_its_time_when_the_event_loop_is_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep, slept = asyncio.sleep, list[float]()

    async def early(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds / 2)

    monkeypatch.setattr(asyncio, "sleep", early)
    clock = RealClock()
    await clock.until(0.004)
    assert clock.now() >= 0.004
    assert len(slept) > 1


async def test_a_time_that_was_is_not_waited_for() -> None:
    clock = RealClock()
    await clock.until(-1.0)
    assert clock.now() >= 0

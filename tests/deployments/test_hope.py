"""Hope for a replica: bounded, and asked for where replicas come on demand."""

import asyncio

import pytest

from deployments import hope as module
from deployments.hope import Hope


class Desk:
    def __init__(self, hold_s: float) -> None:
        self.expired = 0
        self.asked = 0
        self.cancelled = 0
        self.hope = Hope(hold_s, self._expire, self._wake)

    def _expire(self) -> None:
        self.expired += 1

    async def _wake(self) -> None:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_it_ends_with_a_replica() -> None:
    desk = Desk(60)
    for _ in range(3):
        desk.hope.begin()
        await asyncio.sleep(0)
    assert (desk.hope.alive, desk.asked) == (True, 1)
    desk.hope.fulfil()
    await asyncio.sleep(0)
    assert (desk.hope.alive, desk.hope.failed, desk.cancelled, desk.expired) == (False, False, 1, 0)


async def test_it_ends_by_itself_and_can_begin_anew() -> None:
    desk = Desk(0.01)
    for times in (1, 2):
        desk.hope.begin()
        async with asyncio.timeout(5):
            while desk.hope.alive:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert (desk.hope.failed, desk.expired, desk.asked, desk.cancelled) == (True, *[times] * 3)
    desk.hope.fulfil()
    assert not desk.hope.failed


@pytest.mark.parametrize("fails", [True, False])
async def test_it_asks_until_there_is_a_replica(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was about to go answered, and nobody asked again while requests were held."""
    monkeypatch.setattr(module, "ASK_S", 0.001)
    asked = 0

    async def wake() -> None:
        nonlocal asked
        asked += 1
        if fails:
            raise RuntimeError("no controller")

    hope = Hope(60, lambda: None, wake)
    hope.begin()
    async with asyncio.timeout(5):
        while asked < 3:
            await asyncio.sleep(0.001)
    assert hope.alive
    hope.fulfil()

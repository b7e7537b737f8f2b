"""Calls over a lane, and who answers them, with what is sent handed on at once."""

import asyncio
from typing import Any

import pytest

from deployments.caller import Caller, CallFailed
from deployments.guest import Guest
from deployments.messages import Told


class Lanes:
    """Two ends; what one sends, the other has heard."""

    def __init__(self, **methods: Any) -> None:
        self.caller = Caller(self)  # type: ignore[arg-type]
        self.guest = Guest(methods, self)  # type: ignore[arg-type]

    def send(self, message: Any) -> None:
        if isinstance(message, Told):
            self.caller.told(message)
        else:
            self.guest.came(message)


async def test_answers_find_who_asked_in_whatever_order_they_come() -> None:
    gates = {name: asyncio.Event() for name in "ab"}

    async def echo(name: str) -> str:
        await gates[name].wait()
        return name

    lanes = Lanes(echo=echo)
    first, second = lanes.caller.call("echo", "a"), lanes.caller.call("echo", "b")
    gates["b"].set()
    assert await second == "b"
    assert not first.done()
    gates["a"].set()
    assert await first == "a"
    await asyncio.sleep(0)
    assert (lanes.caller._open, lanes.guest._running) == ({}, {})


async def test_what_is_raised_there_is_an_error_here() -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    with pytest.raises(CallFailed, match="ZeroDivisionError"):
        await Lanes(breaks=breaks).caller.call("breaks")


@pytest.mark.parametrize("how", ["taken back", "gone"])
async def test_what_nobody_waits_for_is_cancelled_there(how: str) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    lanes = Lanes(hangs=hangs)
    call = lanes.caller.call("hangs")
    await began.wait()
    if how == "gone":
        lanes.guest.ended()
    else:
        call.cancel()
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_the_end_of_the_lane_is_the_answer_to_all_that_is_open() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    lanes = Lanes(hangs=hangs)
    calls = [lanes.caller.call("hangs") for _ in range(2)]
    lanes.caller.fail(EOFError())
    for call in calls:
        with pytest.raises(EOFError):
            await call
    lanes.guest.ended()

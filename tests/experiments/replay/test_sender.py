"""Each request at its time, and an outcome for each."""

import asyncio

import pytest

from experiments.loads.load import Arrival, Load
from experiments.replay.ahead import Ahead
from experiments.replay.sender import Sender
from experiments.simulator.outcome import Outcome
from tests.experiments.replay.scripted import HandClock


class Numbers:
    """Bodies that say which request they belong to."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def of(self, index: int) -> bytes:
        self.made.append(index)
        return str(index).encode()


class Held:
    """A client that answers when it is let."""

    def __init__(self, clock: HandClock) -> None:
        self.sent: list[tuple[int, float, bytes]] = []
        self.let = asyncio.Event()
        self._clock = clock

    async def send(self, index: int, arrival: Arrival, body: bytes) -> Outcome:
        self.sent.append((index, self._clock._now, body))
        outcome = Outcome(index, arrival.at, arrival.priority, arrival.tenant, 1)
        try:
            await self.let.wait()
            outcome.status = "ok"
        except asyncio.CancelledError:
            outcome.reason = "interrupted"
        return outcome


class House:
    """A sender with all that it needs."""

    def __init__(self, *times: float) -> None:
        self.load = Load("hand", [Arrival(at, 1, 1) for at in times])
        self.clock = HandClock()
        self.client = Held(self.clock)
        self.bodies = Numbers()
        ahead = Ahead(self.bodies, len(times), ahead=2)
        self.sender = Sender(self.load, self.client, ahead, self.clock)
        self.task = asyncio.create_task(self.sender.run())

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(50):
            await asyncio.sleep(0)


async def test_requests_go_at_their_times_whatever_became_of_those_before() -> None:
    house = House(0.0, 1.0, 1.0, 3.0)
    await house.settle()
    for now, sent in ((0.5, 1), (1.0, 3), (2.9, 3), (3.0, 4)):
        await house.clock.move(now)
        await house.settle()
        assert len(house.client.sent) == sent
    assert house.client.sent == [(0, 0.0, b"0"), (1, 1.0, b"1"), (2, 1.0, b"2"), (3, 3.0, b"3")]
    house.client.let.set()
    assert [(one.index, one.status) for one in await house.task] == [(n, "ok") for n in range(4)]


async def test_bodies_are_made_while_there_is_nothing_to_send_and_not_all_at_once() -> None:
    house = House(1.0, 2.0, 3.0, 4.0)
    await house.settle()
    assert house.bodies.made == [0, 1]
    await house.clock.move(1.0)
    await house.settle()
    assert house.bodies.made == [0, 1, 2]
    house.sender.cut()
    await house.task


async def test_answers_are_read_while_bodies_are_made() -> None:
    house, turns, at = House(*[5.0] * 9), [0], list[int]()

    class Slow(Numbers):
        def of(self, index: int) -> bytes:
            at.append(turns[0])
            return b""

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    sender = Sender(house.load, house.client, Ahead(Slow(), 9), house.clock)
    sending = asyncio.create_task(sender.run())
    await house.settle()
    assert at == sorted(set(at))
    assert len(at) == 9
    counting.cancel()
    for one in (sender, house.sender):
        one.cut()
    await asyncio.gather(sending, house.task)


async def test_what_is_late_is_sent_at_once() -> None:
    house = House(0.0, 1.0, 2.0)
    await house.clock.move(9.0)
    await house.settle()
    assert [index for index, _, _ in house.client.sent] == [0, 1, 2]
    house.client.let.set()
    assert len(await house.task) == 3


async def test_after_a_stop_nothing_is_sent_and_answers_are_awaited() -> None:
    house = House(0.0, 1.0, 2.0)
    await house.settle()
    house.sender.stop()
    await house.clock.move(5.0)
    await house.settle()
    assert not house.task.done()
    house.client.let.set()
    outcomes = await house.task
    assert [(one.index, one.status) for one in outcomes] == [(0, "ok")]


async def test_after_a_cut_all_that_were_sent_have_an_outcome() -> None:
    house = House(0.0, 0.0, 2.0)
    await house.settle()
    house.sender.stop()
    house.sender.cut()
    outcomes = await house.task
    assert [(one.index, one.reason) for one in outcomes] == [(0, "interrupted"), (1, "interrupted")]


@pytest.mark.parametrize("turns", range(8))
async def test_a_cut_at_any_moment_loses_nobody(turns: int) -> None:
    house = House(0.0, 0.0, 0.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    house.sender.cut()
    outcomes = await house.task
    assert [one.index for one in outcomes] == list(range(house.sender.sent))
    assert all(one.reason == "interrupted" for one in outcomes)


async def test_a_body_that_cannot_be_made_ends_it() -> None:
    house = House(0.0, 1.0)
    house.bodies.of = lambda index: 1 // 0  # type: ignore[method-assign,return-value]
    with pytest.raises(ZeroDivisionError):
        await house.task

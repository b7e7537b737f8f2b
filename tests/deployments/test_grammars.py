"""Grammars: compiled beside the loop, for requests that may be gone by then."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from deployments.messages import Goodbye, RefusalKind
from engine.request import SamplingParams
from engine.submission import Submission
from tests.deployments.replica_house import TIMEOUT_S, House, until


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    house = House(monkeypatch)
    yield house
    house.close()


async def test_grammars_are_compiled_off_the_loop_while_others_are_taken(house: House) -> None:
    """The streams of all requests stood still while one's grammar was compiled."""
    stream = house.replica.stream("g")
    await anext(stream)
    guided = await house.begin_guided("guided")
    assert await house.submit("free") is None
    house.engine.end("free")
    house.engine.tell()
    assert await anext(stream) == (("free", (7,), "x", "stop", None, None),)
    assert house.replica._owner == {}
    house.finish_compiling("guided")
    assert await guided is None
    assert house.replica._owner == {"guided": "g"}
    assert house.engine.matchers["guided"] == "matcher of guided"
    assert house.engine.matchers["free"] is None
    assert threading.main_thread() not in house.engine.compiled_on
    assert len(set(house.engine.compiled_on)) == 1
    house.engine.end("guided")
    house.engine.tell()
    assert await anext(stream) == (("guided", (7,), "x", "stop", None, None),)


async def test_tables_for_grammars_are_made_before_anybody_asks(house: House) -> None:
    await until(lambda: house.engine.compiled_on)
    assert list(house.engine.compiling) == ["guided warm-up"]


async def test_one_without_a_grammar_is_taken_without_a_pause(house: House) -> None:
    """Its order among others, and its owner when its first event comes, depend on it."""
    stream = house.replica.stream("g")
    await anext(stream)
    call = house.replica.submit("g", Submission("a", (1,), SamplingParams()))
    with pytest.raises(StopIteration):
        call.send(None)
    assert house.replica._owner == {"a": "g"}


async def test_one_aborted_while_its_grammar_is_compiled_is_not_taken(house: House) -> None:
    stream = house.replica.stream("g")
    await anext(stream)
    guided = await house.begin_guided("a")
    await house.replica.abort(["a"])
    house.finish_compiling("a")
    refusal = await guided
    assert refusal is not None
    assert refusal.kind is RefusalKind.ABANDONED
    assert "a" not in house.engine.matchers
    assert (house.replica._owner, house.replica._grammars.busy) == ({}, False)


@pytest.mark.parametrize("back", [False, True])
async def test_one_whose_stream_ends_while_its_grammar_is_compiled_is_not_taken(
    house: House, back: bool
) -> None:
    """A gateway's next stream knows nothing of what was submitted beside the one before."""
    stream = house.replica.stream("g")
    await anext(stream)
    guided = await house.begin_guided("a")
    await stream.aclose()  # type: ignore[attr-defined]
    again = house.replica.stream("g")
    if back:
        await anext(again)
    house.finish_compiling("a")
    refusal = await guided
    assert refusal is not None
    assert refusal.kind is RefusalKind.NO_STREAM
    assert house.replica._owner == {}
    assert all("a" not in report.admitted for report in await house.reports())


async def test_one_without_room_after_all_is_refused(house: House) -> None:
    stream = house.replica.stream("g")
    await anext(stream)
    house.engine.full = True
    guided = await house.begin_guided("a")
    house.finish_compiling("a")
    refusal = await guided
    assert refusal is not None
    assert refusal.kind is RefusalKind.QUEUE_FULL
    assert (house.replica._owner, house.replica._grammars.busy) == ({}, False)


@pytest.mark.parametrize("taken", [True, False])
async def test_a_replica_that_is_to_go_waits_for_grammars_too(house: House, taken: bool) -> None:
    stream = house.replica.stream("g")
    await anext(stream)
    guided = await house.begin_guided("a")
    house.wanted.put_nowait(False)
    assert (await house.reports())[-1].leaving
    assert house.router.gone == []
    house.engine.full = not taken
    house.finish_compiling("a")
    if taken:
        assert await guided is None
        assert house.router.gone == []
        house.engine.end("a")
        house.engine.tell()
        assert await anext(stream) == (("a", (7,), "x", "stop", None, None),)
    async with asyncio.timeout(TIMEOUT_S):
        assert [message async for message in stream] == [Goodbye()]
    await until(lambda: house.router.gone)
    await guided


async def test_at_the_deadline_it_waits_for_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, drain_s=0.01)
    stream = house.replica.stream("g")
    await anext(stream)
    guided = await house.begin_guided("a")
    house.wanted.put_nowait(False)
    assert [message async for message in stream] == [Goodbye()]
    house.finish_compiling("a")
    refusal = await guided
    assert refusal is not None
    assert refusal.kind is RefusalKind.NO_STREAM
    house.close()

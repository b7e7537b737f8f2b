"""A replica: who hears of what, how it goes, and whether it is well."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments import replica as module
from deployments import warm_up as warming
from deployments.messages import Goodbye, RefusalKind
from deployments.tracing import Tracing
from engine.request import SamplingParams
from engine.submission import Submission
from tests.deployments.replica_house import House, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    house = House(monkeypatch)
    yield house
    house.close()


async def test_events_go_to_the_gateway_that_asked_and_ends_to_the_router(house: House) -> None:
    stream = house.replica.stream("g")
    assert replace(await anext(stream), door=None) == house.replica._info
    assert await house.submit("a") is None
    house.engine.end("a")
    house.engine.tell()
    assert await anext(stream) == (("a", (7,), "x", "stop", None, None),)
    reports = await house.reports()
    assert [key for one in reports for key in one.admitted] == ["a"]
    assert {key for one in reports for key in one.ended} == {"a"}
    assert house.replica._owner == {}


def traced(house: House) -> InMemorySpanExporter:
    """Record spans of the replica from now on."""
    memory = InMemorySpanExporter()
    house.replica._tracing = Tracing("r", SimpleSpanProcessor(memory), time.time_ns)
    return memory


def outcomes(memory: InMemorySpanExporter) -> list[Any]:
    """How the stays that have ended did."""
    stays = [span for span in memory.get_finished_spans() if span.name == "replica"]
    return [dict(span.attributes or {})["tidegate.outcome"] for span in stays]


async def test_traced_requests_have_spans_here_however_they_end(house: House) -> None:
    memory = traced(house)
    stream = house.replica.stream("g")
    await anext(stream)
    for key in ("ends", "aborted"):
        submission = Submission(key, (1,), SamplingParams())
        assert await house.replica.submit("g", submission, None, PARENT) is None
    await house.submit("untraced")
    house.engine.end("ends")
    house.engine.tell()
    await anext(stream)
    await house.replica.abort(["aborted"])
    await stream.aclose()  # type: ignore[attr-defined]
    spans = memory.get_finished_spans()
    stays = [span for span in spans if span.name == "replica"]
    assert outcomes(memory) == ["stop", "abort"]
    assert {f"{span.parent.span_id:016x}" for span in stays if span.parent} == {PARENT[36:52]}
    assert [span.name for span in spans].count("decode") == 1
    assert house.replica._stays == {}


@pytest.mark.parametrize("within_s", [20.0, 0.5, -1.0, None])
async def test_time_left_counts_from_the_replicas_own_now(
    house: House, monkeypatch: pytest.MonkeyPatch, within_s: float | None
) -> None:
    monkeypatch.setattr(module, "wall_clock_ms", lambda: 5_000)
    stream = house.replica.stream("g")
    await anext(stream)
    submission = Submission("a", (1,), SamplingParams(), arrival=9_000_000)
    assert await house.replica.submit("g", submission, within_s) is None
    want = None if within_s is None else 5_000 + round(1000 * within_s)
    assert house.engine._live["a"] == replace(submission, start_by=want)


async def test_figures_and_names_tell_of_the_same_moment(house: House) -> None:
    """Blocks that the engine had freed were free in the figures and free again as a credit."""
    stream = house.replica.stream("g")
    await anext(stream)
    await house.submit("a")
    await house.reports()
    house.engine.end("a")
    # The engine's thread is past the step, the event loop has not heard of it.
    last = (await house.reports())[-1]
    assert (last.free_blocks, last.ended) == (10, ("a",))


@pytest.mark.parametrize("trouble", [asyncio.CancelledError(), RuntimeError("bug")])
async def test_reports_go_on_whatever_the_router_does(house: House, trouble: BaseException) -> None:
    """A router that was stopped with a report under way left a replica silent for ever."""
    house.router.script = [trouble, trouble]
    await house.reports()
    assert not house.router.script
    assert not house.replica._reporting.done()


async def test_a_gateway_that_goes_takes_its_requests_along(house: House) -> None:
    stream = house.replica.stream("g")
    await anext(stream)
    await house.submit("a")
    await stream.aclose()  # type: ignore[attr-defined]
    assert house.engine.aborted == ["a"]
    refusal = await house.submit("b")
    assert refusal is not None
    assert refusal.kind is RefusalKind.NO_STREAM
    assert (house.replica._owner, house.replica._boxes) == ({}, {})


async def test_a_gateway_that_comes_anew_has_nothing_left_from_before(house: House) -> None:
    """It has given up what it had here; the end of the old stream takes nothing of the new one."""
    before = house.replica.stream("g")
    await anext(before)
    await house.submit("a")
    now = house.replica.stream("g")
    await anext(now)
    assert house.engine.aborted == ["a"]
    await house.submit("b")
    assert [batch async for batch in before] == []
    assert house.replica._owner == {"b": "g"}
    await now.aclose()  # type: ignore[attr-defined]
    assert house.engine.aborted == ["a", "b"]


async def test_when_the_engine_fails_streams_end_without_an_error(house: House) -> None:
    """Its requests did nothing wrong: their gateways take them elsewhere."""
    memory = traced(house)
    stream = house.replica.stream("g")
    await anext(stream)
    submission = Submission("a", (1,), SamplingParams())
    assert await house.replica.submit("g", submission, None, PARENT) is None
    house.engine.failure = RuntimeError("out of memory")
    house.engine.tell()
    assert [batch async for batch in stream] == []
    with pytest.raises(RuntimeError, match="does not move"):
        await house.replica.check_health()
    assert house.replica._owner == {}
    assert outcomes(memory) == ["lost"]


async def test_a_replica_that_is_to_go_takes_nothing_new_and_finishes(house: House) -> None:
    """Serve ended a replica with what it had running."""
    stream = house.replica.stream("g")
    await anext(stream)
    await house.submit("a")
    house.wanted.put_nowait(True)
    assert not (await house.reports())[-1].leaving
    house.wanted.put_nowait(False)
    assert (await house.reports())[-1].leaving
    # On its way when the router heard of it: taken all the same.
    assert await house.submit("b") is None
    for key in ("a", "b"):
        assert house.router.gone == []
        house.engine.end(key)
        house.engine.tell()
        assert await anext(stream) == ((key, (7,), "x", "stop", None, None),)
    assert [message async for message in stream] == [Goodbye()]
    await until(lambda: house.router.gone)
    assert house.router.gone == ["r"]
    # Whoever comes now is sent away, and no report calls it back to life.
    assert [message async for message in house.replica.stream("h")] == [Goodbye()]
    await until(house.replica._reporting.cancelled)


async def test_at_the_deadline_it_hands_over_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, drain_s=0.01)
    memory = traced(house)
    stream = house.replica.stream("g")
    await anext(stream)
    submission = Submission("a", (1,), SamplingParams())
    assert await house.replica.submit("g", submission, None, PARENT) is None
    house.wanted.put_nowait(False)
    assert [message async for message in stream] == [Goodbye()]
    assert house.engine.aborted == ["a"]
    assert house.replica._owner == {}
    assert outcomes(memory) == ["drained"]
    house.close()


async def test_a_replica_that_is_wanted_again_stays(house: House) -> None:
    """Serve's controller may lose sight of one for a moment, as when it is restarted."""
    stream = house.replica.stream("g")
    await anext(stream)
    await house.submit("a")
    house.wanted.put_nowait(False)
    assert (await house.reports())[-1].leaving
    house.wanted.put_nowait(True)
    assert not (await house.reports())[-1].leaving
    house.engine.end("a")
    house.engine.tell()
    assert await anext(stream) == (("a", (7,), "x", "stop", None, None),)
    await house.reports()
    assert (house.replica._gone, house.router.gone) == (False, [])


async def test_what_the_router_says_is_passed_on_to_the_autoscaler(house: House) -> None:
    await house.reports()
    assert house.replica.record_autoscaling_stats() == {"demand": 1.0}


@pytest.mark.parametrize(
    ("warm_up", "error", "says"),
    [
        ("hangs", TimeoutError, "no answer to a warm-up request"),
        ("breaks", RuntimeError, "the warm-up request failed: no memory"),
        ("fails", RuntimeError, "the warm-up request failed: no memory"),
    ],
)
async def test_a_replica_without_a_warm_up_answer_does_not_come_up(
    monkeypatch: pytest.MonkeyPatch, warm_up: str, error: type[Exception], says: str
) -> None:
    """vllm#15313: traffic went to a replica that could not answer yet."""
    monkeypatch.setattr(warming, "_TIMEOUT_S", 0.01)
    # Serve sends nothing to a replica whose constructor raises, and starts another.
    with pytest.raises(error, match=says):
        House(monkeypatch, warm_up=warm_up)


@pytest.mark.parametrize(("busy", "since", "moves"), [(1, 9, True), (0, 99, True), (1, 99, False)])
async def test_a_step_loop_that_hangs_is_no_health(
    house: House, busy: bool, since: float, moves: bool
) -> None:
    """vllm#39863, ray#61263: the process answered, and its requests hung for ever."""
    assert 9 < house.replica._config.stall_s < 99
    stream = house.replica.stream("g")
    await anext(stream)
    if busy:
        await house.submit("a")
    house.engine.since = since
    if moves:
        await house.replica.check_health()
    else:
        with pytest.raises(RuntimeError, match="does not move"):
            await house.replica.check_health()
    assert house.replica._figures().vitals.healthy is moves


async def test_one_that_has_gone_and_is_wanted_again_is_replaced(house: House) -> None:
    """It had nothing to finish, so it had said goodbye when Serve changed its mind."""
    house.wanted.put_nowait(True)
    house.wanted.put_nowait(False)
    await until(lambda: house.router.gone)
    house.wanted.put_nowait(True)
    await until(lambda: not house.replica._leaving)
    with pytest.raises(RuntimeError, match="handed over"):
        await house.replica.check_health()

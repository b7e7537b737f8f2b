"""A replica around an engine that a test drives by hand."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import engine.build
from deployments import replica as module
from deployments import warm_up as warming
from deployments.config import ServeConfig
from deployments.messages import Goodbye, Heard, Refusal, RefusalKind
from deployments.replica import Replica
from deployments.tracing import Tracing
from engine.request import FinishReason, QueueFull, SamplingParams
from engine.scheduler_config import SchedulerStats
from engine.submission import Delta, EngineFailed, Progress, Standing, StepReport, Submission
from router.report import Report

TIMEOUT_S = 5.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class FakeEngine:
    """Holds what it is given; ``end`` is a step in which a request finishes."""

    def __init__(self, on_step: Callable[[StepReport], None], warm_up: str = "works") -> None:
        self._on_step = on_step
        self._warm_up = warm_up
        self.since = 0.0
        self._live: dict[str, Submission] = {}
        self.failure: BaseException | None = None
        self.aborted: list[str] = []
        self._late: list[Delta] = []
        self.compiling: dict[str, threading.Event] = {}
        self.compiled_on: list[threading.Thread] = []
        self.matchers: dict[str, Any] = {}
        self.full = False

    def start(self) -> None:
        pass

    def stop(self, timeout: float) -> bool:
        return True

    def compile(self, submission: Submission) -> str:
        """Make a matcher, once the test says so."""
        self.compiled_on.append(threading.current_thread())
        assert self.compiling.setdefault(submission.key, threading.Event()).wait(TIMEOUT_S)
        if self.full:
            raise QueueFull(1, 1)
        return f"matcher of {submission.key}"

    def submit(self, submission: Submission, matcher: Any = None) -> None:
        if self.failure is not None:
            raise EngineFailed(repr(self.failure))
        assert threading.current_thread() is threading.main_thread()
        self._live[submission.key] = submission
        self.matchers[submission.key] = matcher
        if submission.key != "warm-up" or self._warm_up == "hangs":
            return
        if self._warm_up == "works":
            self.end("warm-up")
        else:
            self.failure = RuntimeError("no memory") if self._warm_up == "breaks" else None
            self._late.append(Delta("warm-up", error="no memory"))
            self.abort("warm-up")
        self.tell()

    def abort(self, key: str) -> bool:
        self.aborted.append(key)
        return self._live.pop(key, None) is not None

    def end(self, key: str) -> None:
        """Finish a request; nobody hears of it before ``tell``."""
        del self._live[key]
        self._late.append(Delta(key, (7,), "x", FinishReason.STOP))

    def tell(self) -> None:
        deltas, self._late = self._late, []
        self._on_step(StepReport(tuple(deltas), self._stats()))

    def standing(self) -> Standing:
        return Standing(self._stats(), frozenset(self._live))

    def _stats(self) -> SchedulerStats:
        return SchedulerStats(
            total_blocks=10,
            free_blocks=10 - len(self._live),
            running=len(self._live),
            waiting=0,
            waiting_blocks=0,
            preemptions=0,
            admission_preemptions=0,
            recomputed_tokens=0,
            gap_admissions=0,
            steps=0,
        )

    def progress(self) -> Progress:
        return Progress(0, bool(self._live), self.since)


class FakeRouter:
    """Takes reports; a script says what happens to the first ones."""

    def __init__(self) -> None:
        self.script: list[BaseException] = []
        self.reports: list[Report] = []
        self.report = SimpleNamespace(remote=self._report)
        self.left = SimpleNamespace(remote=self._left)
        self.lane = SimpleNamespace(remote=self._lane)
        self.gone: list[str] = []

    def options(self, **_: Any) -> "FakeRouter":
        return self

    async def _lane(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    async def _left(self, replica: str) -> None:
        self.gone.append(replica)

    async def _report(self, report: Report, *_: Any) -> Heard:
        await asyncio.sleep(0)
        if self.script:
            raise self.script.pop(0)
        self.reports.append(report)
        return Heard(False, {"demand": 1.0})


class House:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, drain_s: float = 60.0, warm_up: str = "works"
    ) -> None:
        info = SimpleNamespace(fingerprint="f", block_tokens=4, total_blocks=10, max_model_len=40)

        def build(config: Any, on_step: Any, clock: Any) -> Any:
            self.engine = FakeEngine(on_step, warm_up)
            self.finish_compiling("guided warm-up")
            return self.engine, info

        replica_id = SimpleNamespace(unique_id="r")
        context = SimpleNamespace(replica_id=replica_id, deployment="Replica", app_name="app")
        self.wanted: asyncio.Queue[bool] = asyncio.Queue()
        monkeypatch.setattr(module, "membership", lambda *_: self._membership())
        monkeypatch.setattr(module.serve, "get_deployment_handle", lambda *_, **__: None)
        monkeypatch.setattr(module.serve, "get_replica_context", lambda: context)
        monkeypatch.setattr(engine.build, "build_engine", build)
        monkeypatch.setattr(module, "get_node_ip_address", lambda: "127.0.0.1")
        self.router = FakeRouter()
        config = ServeConfig(report_interval_s=0.001, heartbeat_s=0.01, drain_s=drain_s)
        self.replica = Replica(config, self.router)  # type: ignore[arg-type]

    async def _membership(self) -> AsyncIterator[bool]:
        while True:
            yield await self.wanted.get()

    def close(self) -> None:
        for gate in self.engine.compiling.values():
            gate.set()
        self.replica._reporting.cancel()
        self.replica._following.cancel()
        self.replica._keeping.cancel()
        self.replica._doors.close()

    async def submit(self, key: str, grammar: str | None = None) -> Refusal | None:
        submission = Submission(key, (1,), SamplingParams(grammar=grammar))
        return await self.replica.submit("g", submission)

    async def begin_guided(self, key: str) -> "asyncio.Task[Refusal | None]":
        """Submit one whose grammar is being compiled when this returns."""
        task = asyncio.create_task(self.submit(key, "a grammar"))
        await until(lambda: key in self.engine.compiling)
        return task

    def finish_compiling(self, key: str) -> None:
        self.engine.compiling.setdefault(key, threading.Event()).set()

    async def reports(self, more: int = 2) -> list[Report]:
        """Wait for reports that were begun from now on; returns all."""
        wanted = len(self.router.reports) + more
        async with asyncio.timeout(5):
            while len(self.router.reports) < wanted:
                await asyncio.sleep(0.001)
        return self.router.reports


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


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not check():
            await asyncio.sleep(0.001)


async def test_one_that_has_gone_and_is_wanted_again_is_replaced(house: House) -> None:
    """It had nothing to finish, so it had said goodbye when Serve changed its mind."""
    house.wanted.put_nowait(True)
    house.wanted.put_nowait(False)
    await until(lambda: house.router.gone)
    house.wanted.put_nowait(True)
    await until(lambda: not house.replica._leaving)
    with pytest.raises(RuntimeError, match="handed over"):
        await house.replica.check_health()


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

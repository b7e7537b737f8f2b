"""A replica around an engine that a test drives by hand."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import engine.build
from deployments import replica as module
from deployments.config import ServeConfig
from deployments.messages import Heard, Refusal
from deployments.replica import Replica
from engine.request import FinishReason, QueueFull, SamplingParams
from engine.scheduler_config import SchedulerStats
from engine.submission import Delta, EngineFailed, Progress, Standing, StepReport, Submission
from router.report import Report

TIMEOUT_S = 5.0


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


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not check():
            await asyncio.sleep(0.001)

"""Replica: one Engine in a Serve deployment, and the streams from it to the gateways."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from deployments.calls import Gone, answer_of
from deployments.config import ServeConfig
from deployments.doors import Doors
from deployments.engine_config import engine_config
from deployments.grammars import Grammars
from deployments.logs import join_serve
from deployments.membership import membership
from deployments.messages import (
    Batch,
    Goodbye,
    Heard,
    Refusal,
    RefusalKind,
    ReplicaInfo,
    Vitals,
    refuse,
)
from deployments.news import Figures, News, figures_of
from deployments.outbox import Outbox
from deployments.prefix_news import PrefixNews
from deployments.reporting import Reporter
from deployments.router_line import RouterLine
from deployments.tracing import StaySpans, Tracing
from deployments.warm_up import WarmUp
from engine.request import AdmitError, InvalidParam
from engine.submission import Delta, EngineFailed, StepReport, Submission
from router.report import Report

if TYPE_CHECKING:
    from engine.guides import Matcher

logger = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """The scheduler's clock: arrivals are stamped on other machines, so it is the wall's."""
    return time.time_ns() // 1_000_000


class Replica:
    """Runs requests that gateways submit; tells the router what room it has.

    All methods run on the actor's event loop; only ``_on_step`` is called on the engine's
    thread.

    Invariants: ``_owner`` holds exactly the keys that were admitted and have not ended;
    each of them is told to the router once as admitted and once as ended. Every gateway
    that owns a key has a box. Once it has gone, it opens no box any more. A key whose grammar is
    compiled is not admitted yet.

    Raises:
        TimeoutError: the warm-up generation did not come back.
        RuntimeError: it failed.
    """

    def __init__(self, config: ServeConfig, router: DeploymentHandle) -> None:
        join_serve(config.log_level)
        self._loop = asyncio.get_running_loop()
        context = serve.get_replica_context()
        self._name: str = context.replica_id.unique_id
        self._router = router.options(
            request_serialization="pickle", response_serialization="pickle"
        )
        self._line = RouterLine(self._router)
        self._config = config
        self._doors = Doors(get_node_ip_address())
        self._boxes: dict[str, Outbox] = {}
        self._owner: dict[str, str] = {}
        self._tracing = Tracing.of(config.otlp_endpoint, os.environ, self._name, time.time_ns)
        self._stays: dict[str, StaySpans] = {}
        self._ended = asyncio.Event()
        self._leaving = False
        self._gone = False
        self._warm_up = WarmUp()
        # Here, since whoever deploys imports this module and has no use for torch.
        from engine.build import build_engine

        self._engine, info = build_engine(engine_config(config), self._on_step, wall_clock_ms)
        self._engine.start()
        self._grammars = Grammars(self._engine)
        self._warm_up.run(self._engine)
        self._info = ReplicaInfo(
            info.fingerprint, info.block_tokens, info.total_blocks, info.max_model_len
        )
        news = News(
            self._name,
            info.fingerprint,
            config.report_interval_s,
            config.heartbeat_s,
            PrefixNews(self._engine) if config.by_prefix else None,
        )
        self._reporter = Reporter(news, self._figures, self._send)
        self._reporting = self._loop.create_task(self._reporter.run())
        self._keeping = self._loop.create_task(self._line.keep())
        me = serve.get_deployment_handle(context.deployment, context.app_name, _check_exists=False)
        self._following = self._loop.create_task(self._follow(membership(me, self._name)))

    async def submit(
        self,
        gateway: str,
        submission: Submission,
        within_s: float | None = None,
        traceparent: str = "",
    ) -> Refusal | None:
        """Take a request whose events go to ``gateway``'s stream; None means taken.

        Args:
            gateway: where it comes from.
            submission: the request.
            within_s: seconds from now after which it is not to be started any more. They are
                told, and no time: a gateway's clock may be minutes off this one's.
            traceparent: the W3C trace context for its spans; empty for none.
        """
        if within_s is not None:
            submission = replace(submission, start_by=wall_clock_ms() + round(1000 * within_s))
        box = self._boxes.get(gateway)
        if box is None or self._gone:  # a box that is closed already tells nobody anything
            return Refusal(RefusalKind.NO_STREAM)
        try:
            matcher = None
            if submission.params.grammar is not None:
                matcher = await self._compile(submission)
                if self._boxes.get(gateway) is not box:
                    return Refusal(RefusalKind.NO_STREAM)
                if matcher is None:
                    return Refusal(RefusalKind.ABANDONED)
            # From here on without a pause: events find their owner.
            self._engine.submit(submission, matcher)
        except EngineFailed:
            return Refusal(RefusalKind.NO_STREAM)
        except (AdmitError, InvalidParam) as error:
            return refuse(error)
        self._owner[submission.key] = gateway
        if self._tracing is not None and traceparent:
            self._stays[submission.key] = self._tracing.stay(traceparent)
        self._reporter.admitted(submission.key)
        return None

    async def _compile(self, submission: Submission) -> "Matcher | None":
        try:
            return await self._grammars.compile(submission)
        finally:
            self._ended.set()

    async def abort(self, keys: Sequence[str]) -> None:
        """Drop requests; those that have ended or are unknown are passed over."""
        for key in keys:
            self._grammars.drop(key)
            if self._owner.pop(key, None) is not None:
                self._engine.abort(key)
                self._note_end(key, self._why_dropped())

    def _why_dropped(self) -> str:
        """Name what ends a request here that has not ended by itself: only one ends for good."""
        if self._gone:
            return "drained"
        return "abort" if self._engine.failure is None else "lost"

    async def ping(self) -> None:
        """Answer."""

    async def stream(self, gateway: str) -> AsyncIterator[ReplicaInfo | Batch | Goodbye]:
        """Send what this replica is, then one message a step for as long as both live.

        A gateway that comes through the door gets the messages there, and this stream is silent.
        When the stream ends, so do the gateway's requests: nobody else could read them.
        """
        await self._doors.opened()
        await self._drop_gateway(gateway)
        if self._gone:
            yield Goodbye()
            return
        box = self._boxes[gateway] = Outbox()
        methods = {"submit": partial(self.submit, gateway)}
        try:
            with self._doors.expect(partial(box.attach, methods)) as door:
                yield replace(self._info, door=door)
                async for batch in box.batches():
                    yield batch
        finally:
            if self._boxes.get(gateway) is box:
                await self._drop_gateway(gateway)

    async def check_health(self) -> None:
        """Called by Serve, which restarts a replica that raises.

        Raises:
            RuntimeError: the step loop is dead or hangs, or the replica has gone already
                although Serve wants it.
        """
        if self._gone:
            raise RuntimeError(f"replica {self._name} has handed over all that it had")
        if not self._healthy():
            raise RuntimeError(f"the step loop of replica {self._name} does not move")

    def record_autoscaling_stats(self) -> Mapping[str, float]:
        """Called by Serve, once a second: what the router knows, which it does not ask."""
        return self._reporter.demand

    def __del__(self) -> None:
        if doors := getattr(self, "_doors", None):
            doors.close()
        if grammars := getattr(self, "_grammars", None):
            grammars.close()
        if engine := getattr(self, "_engine", None):
            engine.stop(timeout=1.0)
        if tracing := getattr(self, "_tracing", None):
            tracing.close()

    async def _follow(self, wanted: AsyncIterator[bool]) -> None:
        """Go when Serve wants this replica no more: finish, or hand over at the deadline."""
        going: asyncio.Task[None] | None = None
        async for stays in wanted:
            self._leaving = not stays
            self._reporter.moved()
            if going is not None:
                going.cancel()
            going = None if stays else self._loop.create_task(self._go())

    async def _go(self) -> None:
        logger.info("replica %s is to go; %d requests run here", self._name, len(self._owner))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_s):
                while self._owner or self._grammars.busy:
                    self._ended.clear()
                    await self._ended.wait()
        # From here on there is no way back: Serve waits for the streams to end.
        self._gone = True
        logger.info("replica %s goes; %d requests go on elsewhere", self._name, len(self._owner))
        for box in self._boxes.values():
            box.close(leaving=True)
        self._reporting.cancel()
        call: Any = self._router.left.remote(self._name)
        with contextlib.suppress(Gone):
            await answer_of(call)

    async def _drop_gateway(self, gateway: str) -> None:
        if (box := self._boxes.pop(gateway, None)) is not None:
            box.close()
        await self.abort([key for key, owner in self._owner.items() if owner == gateway])

    def _on_step(self, report: StepReport) -> None:
        if not self._warm_up.over:
            self._warm_up.stepped(report.deltas)
            return
        self._loop.call_soon_threadsafe(self._after_step, report.deltas)

    def _after_step(self, deltas: Sequence[Delta]) -> None:
        if self._engine.failure is not None:
            # Its requests did nothing wrong: their gateways place them elsewhere.
            for gateway in list(self._boxes):
                self._boxes[gateway].close()
            return
        touched: dict[str, Outbox] = {}
        for delta in deltas:
            owner = self._owner.get(delta.key)
            if owner is None:
                continue  # aborted while the step ran
            finish = None if delta.finish is None else delta.finish.value
            box = touched[owner] = self._boxes[owner]
            box.put((delta.key, delta.tokens, delta.text, finish, delta.error, delta.detail))
            if self._stays and (stay := self._stays.get(delta.key)) is not None:
                queued_s = None if delta.detail is None else delta.detail.queued_s
                stay.sent(len(delta.tokens), queued_s)
            if delta.finish is not None or delta.error is not None:
                del self._owner[delta.key]
                self._note_end(delta.key, finish or "error")
        for box in touched.values():
            box.flush()
        self._reporter.moved()

    def _note_end(self, key: str, outcome: str) -> None:
        self._reporter.ended(key)
        if (stay := self._stays.pop(key, None)) is not None:
            stay.ended(outcome)
        self._ended.set()

    def _healthy(self) -> bool:
        progress = self._engine.progress()
        hangs = progress.busy and progress.since > self._config.stall_s
        return self._engine.failure is None and not hangs

    def _figures(self) -> Figures:
        # The engine runs ahead of this loop: what has ended there by now is in the figures no
        # more, though its end is still on its way here. So both are asked for at once.
        standing = self._engine.standing()
        stats, alive = standing.stats, standing.keys
        return figures_of(
            stats,
            max_seqs=self._config.max_num_seqs,
            max_waiting=self._config.max_waiting,
            leaving=self._leaving,
            held=tuple(key for key in self._owner if key in alive),
            ending=tuple(key for key in self._owner if key not in alive),
            vitals=Vitals(
                self._healthy(),
                stats.preemptions,
                stats.recomputed_tokens,
                stats.admission_preemptions,
                stats.queried_tokens,
                stats.found_tokens,
                stats.restored_tokens,
                stats.gap_admissions,
            ),
        )

    async def _send(self, report: Report, vitals: Vitals) -> Heard:
        call: Any = self._line.call("report", report, vitals, self._info)
        heard: Heard = await answer_of(call)
        return heard

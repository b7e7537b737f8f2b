"""Router: RouterCore in one Serve deployment, with futures for those who wait."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace

from deployments.config import ServeConfig
from deployments.logs import join_serve
from deployments.messages import Refusal, RefusalKind, ReplicaInfo, Vitals, unavailable
from deployments.metrics import Counts, Page
from router.core import RouterConfig, RouterCore
from router.errors import Busy, NeverFitsAnywhere, NoReplica, UnknownTicket
from router.report import Report
from router.ticket import Decision, Placement, Ticket

logger = logging.getLogger(__name__)

REPLICA_WAIT_S = 30.0
"""How long requests wait for a first replica, from the start or the loss of the last one."""

SILENT_S = 15.0
"""A replica whose last report is older does not count as making progress."""


@dataclass(slots=True)
class Known:
    """What a replica last said beside its report.

    Attributes:
        info: what it is.
        vitals: how it is.
        at: the router's clock when it said so, in seconds.
    """

    info: ReplicaInfo
    vitals: Vitals
    at: float


@dataclass(slots=True, eq=False)
class Call:
    """A gateway's newest question about one ticket.

    Attributes:
        gateway: who asks.
        decided: gets the answer.
    """

    gateway: str
    decided: "asyncio.Future[str | Refusal]"

    def answer(self, answer: str | Refusal) -> None:
        """Answer, unless it has been answered or the caller has gone."""
        if not self.decided.done():
            self.decided.set_result(answer)


class Router:
    """Answers gateways and hears from replicas; one for the whole deployment.

    Invariant: a ticket is in ``_calls`` from its acquire until it is given up, and then
    nowhere in the core either; its call is answered as soon as it is decided.
    """

    def __init__(self, config: ServeConfig) -> None:
        join_serve(config.log_level)
        self._clock = time.monotonic
        self._rng = random.Random()
        self._expected = config.replicas
        self._core = RouterCore(
            RouterConfig(
                policy=config.scheduling_policy,
                aging_ms=config.aging_ticks,
                lookahead=config.lookahead,
                max_queued=config.max_queued,
                expecting=config.replicas,
            ),
            self._clock,
            self._rng,
        )
        self._calls: dict[str, Call] = {}
        self._sessions: dict[str, object] = {}
        self._replicas: dict[str, Known] = {}
        self._placed: dict[str, int] = {}
        self._counts = Counts()
        self._first_replica = asyncio.Event()
        self._hope: asyncio.TimerHandle | None = None
        self._hope_for_replicas()

    async def acquire(self, gateway: str, ticket: Ticket) -> str | Refusal:
        """Return the replica to go to, once there is one with room, or why there is none.

        When the call is cancelled, the ticket is given up.
        """
        call = self._take_call(gateway, ticket.id)
        try:
            self._settle(self._core.acquire(ticket))
        except (Busy, NoReplica, NeverFitsAnywhere) as error:
            del self._calls[ticket.id]
            return _refusal(error)
        return await self._decision(ticket.id, call)

    async def bounced(self, gateway: str, ticket: Ticket) -> str | Refusal:
        """Place again, with its first arrival, a ticket that its replica had no room for."""
        call = self._take_call(gateway, ticket.id)
        try:
            self._settle(self._core.bounced(ticket.id))
        except UnknownTicket:
            # The replica was lost meanwhile, or this is a new router. It had a place.
            return await self.acquire(gateway, replace(ticket, again=True))
        return await self._decision(ticket.id, call)

    async def release(self, tickets: Mapping[str, bool]) -> None:
        """Give up tickets in whatever state; True for one whose end was seen."""
        for ticket, finished in tickets.items():
            self._release(ticket, finished=finished)

    async def lost(self, replica: str) -> None:
        """A gateway cannot reach the replica."""
        self._lose(replica, "a gateway cannot reach it")

    async def report(self, report: Report, vitals: Vitals, info: ReplicaInfo) -> bool:
        """Hear from a replica; returns whether its next report should be a full one."""
        if not vitals.healthy:
            self._lose(report.replica, "its step loop does not move")
            return True
        self._settle(self._core.report(report))
        full = self._core.wants_full_report(report.replica)
        if not full or report.replica in self._replicas:
            self._meet(report.replica, Known(info, vitals, self._clock()))
        return full

    async def session(self, gateway: str) -> AsyncIterator[int]:
        """Stay open while the gateway lives; when it ends, its tickets are given up."""
        mark = self._sessions[gateway] = object()
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            if self._sessions.get(gateway) is mark:
                del self._sessions[gateway]
                calls = [(t, call) for t, call in self._calls.items() if call.gateway == gateway]
                # Those that wait first: what the others free must not go to the dead.
                for ticket, _ in sorted(calls, key=lambda item: item[1].decided.done()):
                    self._release(ticket, finished=False)

    async def describe(self) -> ReplicaInfo | Refusal:
        """Return what the replicas are, as soon as there is one; the smallest, if they differ."""
        try:
            async with asyncio.timeout(REPLICA_WAIT_S):
                # It may be lost again before this task gets its turn.
                while not self._replicas:
                    await self._first_replica.wait()
        except TimeoutError:
            return unavailable(self._rng)
        return min((known.info for known in self._replicas.values()), key=lambda i: i.total_blocks)

    async def healthy(self) -> bool:
        """Whether a replica makes progress."""
        now = self._clock()
        return any(now - known.at < SILENT_S for known in self._replicas.values())

    async def count(self, counts: Counts) -> None:
        """Add what a gateway counted since it last did."""
        self._counts.merge(counts)

    async def metrics(self, model: str) -> str:
        """Return the Prometheus page of the whole deployment.

        Args:
            model: the model's name, a label of every figure.
        """
        vitals = {name: known.vitals for name, known in self._replicas.items()}
        return Page(model).render(self._counts, self._core.gauges(), vitals, self._placed)

    def _take_call(self, gateway: str, ticket: str) -> Call:
        """Note a question; an earlier one about the same ticket is void, its caller has gone."""
        before = self._calls.get(ticket)
        call = Call(gateway, asyncio.get_running_loop().create_future())
        self._calls[ticket] = call
        if before is not None:
            before.answer(Refusal(RefusalKind.ABANDONED))
        return call

    async def _decision(self, ticket: str, call: Call) -> str | Refusal:
        try:
            return await call.decided
        except asyncio.CancelledError:
            # Of a ticket that was asked for again, the cancelled call was the older one.
            if self._calls.get(ticket) is call:
                self._release(ticket, finished=False)
            raise

    def _settle(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            call = self._calls.get(decision.ticket)
            if isinstance(decision, Placement):
                replica = decision.replica
                answer: str | Refusal = replica
                self._placed[replica] = self._placed.get(replica, 0) + 1
            else:
                answer = _refusal(decision.error)
                self._calls.pop(decision.ticket, None)
            if call is not None:
                call.answer(answer)

    def _release(self, ticket: str, *, finished: bool) -> None:
        if (call := self._calls.pop(ticket, None)) is not None:
            call.answer(Refusal(RefusalKind.ABANDONED))
        self._settle(self._core.release(ticket, finished=finished))

    def _meet(self, replica: str, known: Known) -> None:
        if replica not in self._replicas:
            logger.info("replica %s serves: %s", replica, known.info)
            if self._hope is not None:
                self._hope.cancel()
                self._hope = None
            self._settle(self._core.expect(self._expected))
        self._replicas[replica] = known
        self._first_replica.set()

    def _lose(self, replica: str, reason: str) -> None:
        if self._replicas.pop(replica, None) is not None:
            logger.warning("replica %s is lost: %s", replica, reason)
            if not self._replicas:
                self._hope_for_replicas()
        self._placed.pop(replica, None)
        lost = self._core.lost(replica)
        for ticket in lost.tickets:
            self._calls.pop(ticket, None)
        self._settle(lost.decisions)

    def _hope_for_replicas(self) -> None:
        """Let tickets wait for a replica for a bounded time; after that they are refused."""
        self._first_replica.clear()
        self._settle(self._core.expect(self._expected))
        loop = asyncio.get_running_loop()
        self._hope = loop.call_later(REPLICA_WAIT_S, self._give_up_hope)

    def _give_up_hope(self) -> None:
        self._hope = None
        self._settle(self._core.expect(0))


def _refusal(error: Busy | NoReplica | NeverFitsAnywhere) -> Refusal:
    if isinstance(error, Busy):
        return Refusal(
            RefusalKind.BUSY,
            retry_after=error.retry_after,
            current=error.queued,
            limit=error.limit,
        )
    if isinstance(error, NoReplica):
        return Refusal(RefusalKind.NO_REPLICA, retry_after=error.retry_after)
    return Refusal(RefusalKind.NEVER_FITS, current=error.blocks, limit=error.total)

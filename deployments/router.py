"""Router: RouterCore in one Serve deployment, with futures for those who wait."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ray import serve
from ray.util import get_node_ip_address

from deployments.autoscaling import stats_of
from deployments.calls import answer_of
from deployments.config import ServeConfig
from deployments.doors import Door, Doors
from deployments.exposition import Page
from deployments.guest import Guest, Methods
from deployments.hope import Hope
from deployments.known import Known, smallest
from deployments.load import snapshot
from deployments.logs import join_serve
from deployments.lookout import Lookout, requests
from deployments.messages import Heard, Refusal, ReplicaInfo, Vitals, Word, unavailable
from deployments.metrics import Counts
from deployments.muster import Muster
from deployments.pending import REFUSALS, Call, Pending, refusal_of
from deployments.periods import TICK_S
from deployments.policy_source import telling
from deployments.router_config import placement_policy, router_config
from deployments.sessions import Sessions
from router.core import RouterCore
from router.errors import UnknownTicket
from router.report import Report
from router.ticket import Decision, Lost, Ticket

logger = logging.getLogger(__name__)

JOIN_S = 10.0
"""Tickets that were let in together and that nobody asks for are given up after this long."""


class Router:
    """Answers gateways and hears from replicas; one for the whole deployment.

    Invariant: a ticket is pending from its acquire until it is given up, and then nowhere in
    the core either; its call is answered as soon as it is decided.
    """

    def __init__(self, config: ServeConfig) -> None:
        join_serve(config.log_level)
        self._clock = time.monotonic
        self._rng = random.Random()
        self._config = config
        self._autoscaled = config.autoscaling != "off"
        expected = config.max_replicas if self._autoscaled else config.replicas
        self._core = RouterCore(
            router_config(config, expected),
            self._clock,
            self._rng,
            placement_policy(config, self._rng, telling(config.placement, logger)),
        )
        self._closed = False
        self._pending = Pending()
        self._sessions = Sessions()
        self._doors: Doors | None = None
        self._placed: dict[str, int] = {}
        self._counts = Counts()
        self._lookout = Lookout(self._clock, time.time)
        self._demand: Mapping[str, float] = {}
        self._first_replica = asyncio.Event()
        self._hope = Hope(config.hold_s, self._despair, self._wake if self._autoscaled else None)
        self._muster: Muster[Known] = Muster(
            config,
            expected,
            self._core,
            self._hope,
            lambda: self._pending.waits,
            self._settle,
            self._lookout.changed,
        )
        self._muster.start()
        self._settled = False
        self._ticking = asyncio.get_running_loop().create_task(self._keep_ticking())

    # ---- from gateways ----------------------------------------------------------------

    async def acquire(self, gateway: str, ticket: Ticket) -> str | Refusal:
        """Return the replica to go to, once there is one with room, or why there is none.

        When the call is cancelled, the ticket is given up.
        """
        joined = self._pending.join(ticket.id)
        if joined is not None:
            return await self._decision(ticket.id, joined)
        if self._closed and not ticket.again and ticket.id not in self._pending:
            return unavailable(self._rng)
        call = self._pending.ask(gateway, ticket.id)
        if (refusal := self._acquire((ticket,))) is not None:
            return refusal
        return await self._decision(ticket.id, call)

    async def admit(self, gateway: str, tickets: Sequence[Ticket]) -> Refusal | None:
        """Let in, or queue, tickets that belong together: all of them or, with a refusal, none.

        The gateway then asks for each with ``acquire``, and until it has, nobody waits for them.
        """
        if self._closed and not any(ticket.again for ticket in tickets):
            return unavailable(self._rng)
        now = self._clock()
        calls = [self._pending.ask(gateway, ticket.id, admitted_at=now) for ticket in tickets]
        if (refusal := self._acquire(tickets)) is not None:
            return refusal
        answers = [call.decided.result() for call in calls if call.decided.done()]
        refusals = [answer for answer in answers if isinstance(answer, Refusal)]
        if not refusals:
            return None
        for ticket in tickets:
            self._release(ticket.id, finished=False)
        return refusals[0]

    async def bounced(self, gateway: str, ticket: Ticket) -> str | Refusal:
        """Place again, with its first arrival, a ticket that its replica had no room for."""
        call = self._pending.ask(gateway, ticket.id)
        try:
            self._settle(self._core.bounced(ticket.id))
        except UnknownTicket:
            # The replica was lost meanwhile, or this is a new router. It had a place.
            return await self.acquire(gateway, replace(ticket, again=True))
        return await self._decision(ticket.id, call)

    async def remember(self, gateway: str, tickets: Sequence[Ticket]) -> None:
        """Hear which tickets a gateway holds, from one that has just found this router."""
        self._core.remember(tickets)
        for ticket in tickets:
            self._pending.keep(gateway, ticket.id)

    async def release(self, tickets: Mapping[str, bool]) -> None:
        """Give up tickets in whatever state; True for one whose end was seen."""
        for ticket, finished in tickets.items():
            self._release(ticket, finished=finished)

    async def session(self, gateway: str) -> AsyncIterator[Word]:
        """Yield each replica that this router gives up by itself.

        And once, when that is known, all there are: one that hangs since before this router
        started is silent, and the gateways that wait for it cannot tell. The session stays open
        while the gateway lives; when it ends, its tickets are given up.
        """
        first = frozenset(self._muster.replicas) if self._settled else None
        async with contextlib.aclosing(self._sessions.open(gateway, first, self._abandon)) as words:
            async for word in words:
                yield word

    async def describe(self) -> ReplicaInfo | Refusal:
        """Return what the replicas are, as soon as there is one; the smallest, if they differ."""
        self._muster.asked()
        try:
            async with asyncio.timeout(self._config.hold_s):
                # It may be lost again before this task gets its turn.
                while not self._muster.replicas:
                    await self._first_replica.wait()
        except TimeoutError:
            return unavailable(self._rng)
        return smallest(self._muster.replicas.values())

    async def known(self) -> ReplicaInfo | None:
        """Return the same, or None if there is no replica now; none is woken for that."""
        replicas = self._muster.replicas
        return smallest(replicas.values()) if replicas else None

    async def healthy(self) -> bool:
        """Whether a request would be served: a replica makes progress, or one can be woken."""
        if self._closed:
            return False
        replicas = self._muster.replicas.values()
        if not replicas:
            return self._muster.may_sleep and not self._hope.failed
        now = self._clock()
        return any(now - known.at < self._config.silent_s for known in replicas)

    async def count(self, counts: Counts) -> None:
        """Add what a gateway counted since it last did."""
        self._counts.merge(counts)
        self._lookout.counted(counts)
        if counts.served:
            self._settle(self._core.served(counts.served))

    async def metrics(self, model: str) -> str:
        """Return the Prometheus page of the whole deployment.

        Args:
            model: the model's name, a label of every figure.
        """
        config = self._config
        page = Page(model, vllm=config.vllm_metrics, tenants=config.tenant_metrics)
        return page.render(self._counts, self._core.gauges(), self._vitals(), self._placed)

    async def load(self, model: str) -> dict[str, Any]:
        """Return queue and blocks of each replica; see `deployments.load`.

        Args:
            model: the model's name.
        """
        gauges = self._core.gauges()
        return snapshot(model, gauges, self._vitals(), self._placed, self._counts)

    # ---- from replicas, and about them ------------------------------------------------

    async def report(self, report: Report, vitals: Vitals, info: ReplicaInfo) -> Heard:
        """Hear from a replica."""
        if not vitals.healthy:
            self._give_up(report.replica, "stalled")
            return Heard(True, self._demand)
        self._settle(self._core.report(report))
        full = self._core.wants_full_report(report.replica)
        if not full or report.replica in self._muster.replicas:
            self._meet(report.replica, Known(info, vitals, self._clock(), report.leaving))
        return Heard(full, self._demand)

    async def left(self, replica: str) -> None:
        """The replica goes, as Serve wants it to."""
        self._lose(replica, "left", self._core.lost(replica))

    async def lost(self, replica: str, *, certain: bool) -> None:
        """The replica is dead or, unless that is certain, somebody cannot reach it.

        In doubt nothing more is placed on it while others have room; it is given up when it
        cannot be reached a second time before it has reported again.
        """
        if certain:
            self._lose(replica, "dead", self._core.lost(replica))
        else:
            lost = self._core.unreachable(replica)
            if self._core.knows(replica):
                self._settle(lost.decisions)
            else:
                self._lose(replica, "unreachable", lost)

    # ---- from both --------------------------------------------------------------------

    async def lane(self) -> AsyncIterator[Door]:
        """Yield a door for what the caller calls most, if there can be one.

        Its lane is for as long as it likes; this lasts as long as the caller lives.
        """
        if self._doors is None:
            self._doors = Doors(get_node_ip_address())
        await self._doors.opened()
        with self._doors.expect(partial(Guest, self._methods)) as door:
            if door is not None:
                yield door
            await asyncio.Event().wait()

    @property
    def _methods(self) -> Methods:
        calls = (self.acquire, self.admit, self.bounced, self.release, self.count, self.report)
        return {call.__name__: call for call in calls}

    # ---- from whoever stops all of it -------------------------------------------------

    async def close(self) -> None:
        """Take no new request from now on; what was accepted goes on."""
        self._closed = True

    async def unfinished(self) -> int:
        """How many requests were accepted and have not ended, also by a router before this."""
        return max(len(self._pending), requests(self._core.gauges()))

    def __del__(self) -> None:
        if doors := getattr(self, "_doors", None):
            doors.close()

    # -----------------------------------------------------------------------------------

    def _vitals(self) -> dict[str, Vitals]:
        return {name: known.vitals for name, known in self._muster.replicas.items()}

    def _acquire(self, tickets: Sequence[Ticket]) -> Refusal | None:
        """Ask the core, after the questions were noted; forget them again if it says no."""
        self._lookout.asked()
        self._muster.asked()
        try:
            self._settle(self._core.acquire_all(tickets))
        except REFUSALS as error:
            for ticket in tickets:
                self._pending.forget(ticket.id)
            return refusal_of(error)
        return None

    async def _decision(self, ticket: str, call: Call) -> str | Refusal:
        try:
            return await call.decided
        except asyncio.CancelledError:
            # Of a ticket that was asked for again, the cancelled call was the older one.
            if self._pending.is_newest(ticket, call):
                self._release(ticket, finished=False)
            raise

    def _settle(self, decisions: Iterable[Decision]) -> None:
        for replica in self._pending.decide(decisions):
            self._placed[replica] = self._placed.get(replica, 0) + 1

    def _release(self, ticket: str, *, finished: bool) -> None:
        self._pending.give_up(ticket)
        self._settle(self._core.release(ticket, finished=finished))

    def _abandon(self, gateway: str) -> None:
        """Give up what a gateway had that lives no more."""
        # Those that wait first: what the others free must not go to the dead.
        for ticket in self._pending.of(gateway):
            self._release(ticket, finished=False)

    def _meet(self, replica: str, known: Known) -> None:
        if (before := self._muster.replicas.get(replica)) is not None:
            known = known.after(before)
            self._counts.preempted(before.vitals, known.vitals)
        else:
            logger.info("replica %s serves: %s", replica, known.info)
        self._muster.meet(replica, known)
        self._first_replica.set()

    def _give_up(self, replica: str, reason: str) -> None:
        """Lose a replica on this router's own judgement: the gateways may not know."""
        self._lose(replica, reason, self._core.lost(replica))
        self._sessions.tell(replica)

    def _lose(self, replica: str, reason: str, lost: Lost) -> None:
        if replica in self._muster.replicas:
            logger.warning("replica %s is no more: %s", replica, reason)
            if reason != "left":
                self._counts.add("replicas_lost_total", 1, (("reason", reason),))
        self._placed.pop(replica, None)
        for ticket in lost.tickets:
            self._pending.lose(ticket)
        self._muster.lose(replica, lost.decisions)
        if not self._muster.replicas:
            self._first_replica.clear()

    def _despair(self) -> None:
        self._muster.despair()

    async def _wake(self) -> None:
        # Serve's autoscaler sees a call that waits for a replica, and starts one.
        app = serve.get_replica_context().app_name
        handle = serve.get_deployment_handle("Replica", app, _check_exists=False)
        call: Any = handle.ping.remote()
        await answer_of(call)

    # ---- as time passes ---------------------------------------------------------------

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._tick()
            except Exception:
                logger.exception("a tick failed")

    def _tick(self) -> None:
        self._settle(self._core.tick())
        if not self._settled and not self._core.settling and self._muster.replicas:
            self._settled = True
            self._sessions.tell(frozenset(self._muster.replicas))
        for ticket in self._pending.not_joined(self._clock() - JOIN_S):
            self._release(ticket, finished=False)
        for replica in self._core.silent():
            self._give_up(replica, "silent")
        demand = self._lookout.look(self._core.gauges())
        # Half a fleet with all the queue in front of it would look overloaded.
        if self._autoscaled and not self._core.settling:
            self._demand = stats_of(demand)

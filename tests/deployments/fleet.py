"""A Router without Ray, and replicas that report to it by hand."""

import asyncio
from typing import Any

from deployments.config import ServeConfig
from deployments.messages import Heard, Refusal, ReplicaInfo, Vitals
from deployments.router import Router
from deployments.tenant import Access, Tenant
from router.report import Report
from router.ticket import Ticket

INFO = ReplicaInfo("f", 16, 10, 160)
WELL = Vitals(True, 0, 0)


def ticket(name: str, blocks: int = 4, **more: Any) -> Ticket:
    return Ticket(name, 0, 0, blocks, blocks, **more)


class Fleet:
    """A router, and replicas of ten blocks that report to it by hand."""

    def __init__(self, *tenants: Tenant, **settings: Any) -> None:
        # One replica is all that a new router has to hear of before it places anything.
        settings = {"lookahead": 0, "replicas": 1} | settings
        config = ServeConfig(**settings).with_access(Access(tenants, ()) if tenants else None)
        self.router = Router(config)
        self._seq: dict[str, int] = {}

    async def report(
        self,
        replica: str,
        free: int = 10,
        admitted: tuple[str, ...] = (),
        ended: tuple[str, ...] = (),
        vitals: Vitals = WELL,
        full: bool = False,
        leaving: bool = False,
    ) -> Heard:
        seq = self._seq[replica] = self._seq.get(replica, 0) + 1
        report = Report(
            replica=replica,
            seq=seq,
            total_blocks=10,
            free_blocks=free,
            running=len(admitted),
            max_seqs=8,
            waiting=0,
            waiting_blocks=0,
            max_waiting=8,
            admitted=admitted,
            ended=ended,
            leaving=leaving,
            held=() if seq == 1 or full else None,
        )
        return await self.router.report(report, vitals, INFO)

    def ask(
        self, name: str, gateway: str = "g", blocks: int = 4, **more: Any
    ) -> "asyncio.Task[str | Refusal]":
        return asyncio.create_task(self.router.acquire(gateway, ticket(name, blocks, **more)))

    def grants(self) -> int:
        gauges = self.router._core.gauges()
        return gauges.queued + sum(one.grants for one in gauges.replicas)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)

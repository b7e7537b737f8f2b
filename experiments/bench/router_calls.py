"""CPU time of the Router's process for what it is asked, over lanes as gateways and replicas do."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import psutil

from deployments.config import ServeConfig
from deployments.launch import LocalCluster
from deployments.messages import Refusal, ReplicaInfo, Vitals
from experiments.bench.served import Served, used_by_parts
from experiments.bench.table import Row
from router.report import Report
from router.ticket import Ticket

if TYPE_CHECKING:
    from deployments.router_client import RouterClient
    from deployments.router_line import RouterLine

REPLICAS, AT_ONCE, WARM = 16, 32, 500
_UNLIMITED: Final = 100_000
_BLOCKS, _SEATS = 100_000, 256
_INFO: Final = ReplicaInfo("bench", 16, _BLOCKS, 65_536)


def measure(calls: int) -> Iterator[Row]:
    """Yield what so many requests and reports cost.

    The Router is the real one, alone in a Ray cluster of its own, and so is the gateway's side of
    it; releases go several in one message, as they do there. Behind the replicas' names is nothing
    but their reports.

    Raises:
        StartFailed: Ray does not start.
    """
    config = ServeConfig(replicas=REPLICAS)
    with LocalCluster() as cluster:
        cluster.start(config)
        yield from asyncio.run(_measure(config, calls))


async def _measure(config: ServeConfig, calls: int) -> Sequence[Row]:
    # Ray reads its environment when it is imported.
    from ray import serve

    from deployments.router import Router
    from deployments.router_client import RouterClient
    from deployments.router_line import RouterLine

    serve.start(proxy_location="Disabled")
    plain: Any = serve.deployment(Router)
    deployment = plain.options(
        name="Router", max_ongoing_requests=_UNLIMITED, ray_actor_options={"num_cpus": 0.1}
    )
    handle = await asyncio.to_thread(
        lambda: serve.run(deployment.bind(config), name="bench", route_prefix=None)
    )
    served = Served("", psutil.Process())
    line = RouterLine(handle)
    reports = _Reports(line)
    client = RouterClient(handle, "bench", random.Random(0), 10.0, 1024, lambda _: None)
    kept = [client.keep_session(), client.keep_lane(), line.keep()]
    tasks = [asyncio.create_task(one) for one in kept]
    await reports.send(REPLICAS)
    rows = []
    for what, sender in (("request", _Requests(client)), ("report", reports)):
        await sender.send(WARM)
        before, began = served.used(), time.monotonic()
        await sender.send(calls)
        seconds, after = time.monotonic() - began, served.used()
        spent = used_by_parts(before, after, frozenset())["Router"]
        note = f"{AT_ONCE} at once, {calls / seconds:,.0f}/s meanwhile"
        rows.append(Row(f"router's process, each {what}", spent / calls / 1e3, "µs of CPU", note))
    for task in tasks:
        task.cancel()
    return rows


class _Requests:
    """Asks for a replica, and gives the ticket back at once."""

    def __init__(self, client: "RouterClient") -> None:
        self._client = client
        self._sent = 0

    async def send(self, calls: int) -> None:
        """Send so many, `AT_ONCE` at a time."""
        left = iter(range(calls))
        await asyncio.gather(*(self._some(left) for _ in range(AT_ONCE)))

    async def _some(self, left: Iterator[int]) -> None:
        for _ in left:
            self._sent += 1
            ticket = Ticket(f"t{self._sent}", 0, self._sent, blocks_now=16, blocks_max=32)
            answer = await self._client.place(ticket, bounced=False)
            self._client.release(ticket.id, finished=True)
            if isinstance(answer, Refusal):
                raise RuntimeError(f"the router refuses: {answer.message}")


class _Reports:
    """Reports for replicas that are not there."""

    def __init__(self, line: "RouterLine") -> None:
        self._line = line
        self._seq = 0

    async def send(self, calls: int) -> None:
        """Send so many, each replica one after the other."""
        left = iter(range(calls))
        await asyncio.gather(*(self._some(i, left) for i in range(REPLICAS)))

    async def _some(self, replica: int, left: Iterator[int]) -> None:
        from deployments.calls import answer_of

        for _ in left:
            self._seq += 1
            report = Report(
                replica=f"r{replica}",
                seq=self._seq,
                total_blocks=_BLOCKS,
                free_blocks=_BLOCKS,
                running=0,
                max_seqs=_SEATS,
                waiting=0,
                waiting_blocks=0,
                max_waiting=256,
                held=() if self._seq <= REPLICAS else None,
            )
            await answer_of(self._line.call("report", report, Vitals(True, 0, 0), _INFO))

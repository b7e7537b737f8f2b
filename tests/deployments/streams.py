"""What tests of faults ask for, and how they see what comes of it, all in one event loop.

Not from threads: where streams are read as fast as they come, a thread that polls waits for
seconds to get its turn.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import httpx

from tests.chaos.attempt import Attempt
from tests.chaos.load import send
from tests.deployments.conftest import Server, samples

Body = dict[str, Any]


def request(prompt: str, tokens: int, **more: Any) -> Body:
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": 1, **more}


@dataclass(slots=True)
class Reply:
    """What came of a request.

    Attributes:
        attempt: all of it.
        first: when something of its stream came first, on the monotonic clock, in seconds.
    """

    attempt: Attempt
    first: float | None = None

    @property
    def text(self) -> str:
        """The text of an answer that is whole."""
        assert self.attempt.complete, self.attempt
        assert self.attempt.finishes == {0: "length"}
        return self.attempt.texts[0]

    def note(self) -> None:
        """Something came."""
        self.first = self.first or time.monotonic()


async def ask(http: httpx.AsyncClient, body: Body, *, stream: bool = True) -> Reply:
    """Ask, and return what came however it ended."""
    reply = Reply(Attempt(f"fault-{token_hex(4)}", 0, stream, time.monotonic()))
    await send(http, {**body, "stream": stream}, reply.attempt, reply.note)
    reply.attempt.ended = time.monotonic()
    return reply


def start(http: httpx.AsyncClient, bodies: Sequence[Body]) -> list[asyncio.Task[Reply]]:
    return [asyncio.create_task(ask(http, body)) for body in bodies]


async def condition(check: Callable[[], Awaitable[Any]], timeout_s: float = 60.0) -> None:
    """Wait for a condition, never for a time; an error of the check counts as not yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if await check():
                return
            last: Exception | None = None
        except Exception as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s") from last
        await asyncio.sleep(0.02)


class Watch:
    """Looks at a server through its metrics page.

    Args:
        http: to the server.
        server: its processes.
    """

    def __init__(self, http: httpx.AsyncClient, server: Server) -> None:
        self._http = http
        self._server = server

    async def metrics(self) -> dict[str, float]:
        """The page's samples, by name and labels."""
        return samples((await self._http.get("/metrics")).text)

    async def total(self, name: str) -> float:
        """The sum over all series of a metric."""
        return sum(v for k, v in (await self.metrics()).items() if k.startswith(f"{name}{{"))

    async def running(self) -> float:
        """How many requests the replicas compute."""
        return await self.total("num_requests_running")

    async def queued(self) -> float:
        """How many requests wait in the router."""
        return (await self.metrics())['num_requests_waiting{replica="router"}']

    async def replicas(self) -> set[str]:
        """The names of the replicas that the router knows."""
        prefix = "replica_report_age_seconds{"
        return {name for name in await self.metrics() if name.startswith(prefix)}

    async def idle(self) -> bool:
        """Nothing runs, nothing waits, all blocks are free."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        page = await self.metrics()
        return not any(v for k, v in page.items() if k.startswith(names))

    async def whole(self, replicas: int, gateways: int) -> bool:
        """All that should be there is there, the router knows it, and nothing is left to do."""
        server = self._server
        return (
            await self.idle()
            and len(await self.replicas()) == len(server.processes("Replica")) == replicas
            and len(server.processes("Gateway")) == gateways
            and len(server.processes("Router")) == 1
        )

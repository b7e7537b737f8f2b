"""The load: clients that order from the menu, one dish after the other, and insist."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random

import httpx

from tests.chaos.attempt import Attempt
from tests.chaos.menu import Dish

PATH = "/v1/completions"

HANG_S = 60.0
"""No byte, keep-alives aside, for so long: far above whatever the server may wait for."""

PATIENCE_S = 2.0
"""A client that is told to come back later comes after so long, if not sooner."""

BROKEN_S = 0.2
"""One whose connection broke tries again after so long."""


class Client:
    """Orders until it is told to stop, and tries each dish until it has it, leaves, or is late.

    Args:
        name: the beginning of its requests' ids.
        http: to the server.
        dishes: the menu.
        rng: its choices.
        record: gets each attempt when it begins.
    """

    def __init__(
        self,
        name: str,
        http: httpx.AsyncClient,
        dishes: Sequence[Dish],
        rng: Random,
        record: list[Attempt],
    ) -> None:
        self._name = name
        self._http = http
        self._dishes = dishes
        self._rng = rng
        self._record = record

    async def run(self, closing: float) -> None:
        """Order until ``closing``, in seconds of the monotonic clock; the last order is served."""
        order = 0
        while time.monotonic() < closing:
            order += 1
            await self._insist(f"{self._name}-{order}")

    async def _insist(self, name: str) -> None:
        rng = self._rng
        dish, stream, priority = rng.randrange(len(self._dishes)), rng.random() < 0.7, _level(rng)
        leaves_after = rng.uniform(0, 1.5) if rng.random() < 0.1 else None
        limit_s = rng.uniform(0.05, 4) if rng.random() < 0.1 else None
        body = self._dishes[dish].body(stream=stream, priority=priority)
        if limit_s is not None:
            body["timeout_ms"] = round(1000 * limit_s)
        tries = 0
        while True:
            tries += 1
            attempt = Attempt(f"{name}.{tries}", dish, stream, time.monotonic(), limit_s=limit_s)
            self._record.append(attempt)
            try:
                async with asyncio.timeout(leaves_after):
                    await self._try(attempt, body)
            except TimeoutError:
                attempt.left = True
            finally:
                attempt.ended = time.monotonic()
            if attempt.refused:
                told = float(attempt.headers.get("retry-after-ms", 0)) / 1000
                await asyncio.sleep(min(told or PATIENCE_S, PATIENCE_S))
            elif attempt.broken is None:
                return
            else:
                await asyncio.sleep(BROKEN_S)

    async def _try(self, attempt: Attempt, body: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(HANG_S) as limit:
                loop = asyncio.get_running_loop()
                await send(
                    self._http, body, attempt, lambda: limit.reschedule(loop.time() + HANG_S)
                )
        except TimeoutError:
            attempt.hung = True


async def send(
    http: httpx.AsyncClient,
    body: Mapping[str, object],
    attempt: Attempt,
    news: Callable[[], object],
) -> None:
    """Make an attempt, and note what comes of it.

    Args:
        http: to the server.
        body: the request's.
        attempt: what comes is noted here.
        news: called with each line of a stream that carries something.
    """
    headers = {"x-request-id": attempt.name}
    try:
        async with http.stream("POST", PATH, json=body, headers=headers) as answer:
            attempt.status, attempt.headers = answer.status_code, answer.headers
            if not (attempt.stream and answer.status_code == 200):
                attempt.read_answer(await answer.aread())
                return
            async for line in answer.aiter_lines():
                if attempt.read_line(line):
                    news()
    except httpx.TransportError as error:
        attempt.broken = repr(error)


def _level(rng: Random) -> int:
    return rng.choice((-1, 0, 0, 0, 1, 3))


def connect(url: str, clients: int) -> httpx.AsyncClient:
    """Return the connections of all clients; only their own patience limits them."""
    limits = httpx.Limits(max_connections=clients)
    return httpx.AsyncClient(base_url=url, timeout=None, limits=limits)

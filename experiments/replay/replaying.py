"""Replaying: a load on a live server, from the first question to what came of it."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import aiohttp
from yarl import URL

from experiments.loads.load import Load
from experiments.replay.ahead import Ahead
from experiments.replay.body import Bodies, spelling
from experiments.replay.client import Client, Tally
from experiments.replay.clock import Clock, RealClock
from experiments.replay.descriptors import connections
from experiments.replay.fleet import Fleet
from experiments.replay.manner import Manner
from experiments.replay.measured import Measured, measured_run
from experiments.replay.retry import Retry
from experiments.replay.sender import Sender
from experiments.replay.server import Server, ask
from experiments.replay.target import Target

_KEEP_ALIVE_S: Final = 2.0
"""Less than servers keep a connection: what they close just then would look like a failure."""

_CONNECT_S: Final = 30.0
_PROGRESS_S: Final = 1.0
"""To draw costs milliseconds, in which nothing is sent."""


async def replay(
    load: Load,
    url: URL,
    manner: Manner,
    progress: Callable[[float, Tally], None] | None = None,
    name: str = "measured",
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Send a load in real time and wait for all answers.

    The first SIGINT sends no more, and the answers under way are awaited; the next one, or
    SIGTERM, gives them up.

    Args:
        load: at least one request.
        url: of the server, ending with a slash.
        manner: how to send it.
        progress: is told the seconds since the load began and what was seen, once a second.
        name: of the run.
        say: gets what the user should know before it begins, one line each.

    Raises:
        TargetError: the server does not answer, or asks for another key.
        TooManyConnections: the system does not allow as many as are wanted.
    """
    limit = connections(manner.max_connections, len(load.arrivals))
    async with _session() as session:
        server = await ask(session, url, manner.api_key, manner.model)
        _warn(load, server, limit, say)
        units = spelling(manner.vocab, manner.text, manner.prompt_seed)
        bodies = Bodies(load, server.model, units, manner.lower_first, manner.fields())
        ahead = Ahead(bodies, len(load.arrivals))
        ahead.fill()
        fleet = Fleet(session, url)
        if not (measured := await fleet.look()):
            say("The server has no metrics of Tidegate's: there will be no samples of its fleet.")
        if progress is not None:
            progress(0.0, Tally())  # what the first one takes besides, it takes now
        clock = RealClock()
        target = Target(url, server.model, manner.api_key, manner.tenant_keys)
        retry = Retry(manner.retries, random.Random(manner.seed))
        client = Client(session, target, clock, retry, manner.timeout_s, limit)
        sender = Sender(load, client, ahead, clock)
        beside = [fleet.watch(clock)] if measured else []
        if progress is not None:
            beside.append(_tell(clock, client.tally, progress))
        with _interrupts(sender):
            async with _beside(beside):
                outcomes = await sender.run()
        if progress is not None:
            progress(clock.now(), client.tally)
        if measured:
            await fleet.look(clock)
    run = measured_run(name, load, url, manner, server, fleet, client.tally, outcomes)
    return Measured(run, client.tally, server, len(outcomes))


def _warn(load: Load, server: Server, limit: int, say: Callable[[str], None]) -> None:
    context = server.context
    if context is not None:
        lengths = [one.prompt_tokens + one.output_tokens for one in load.arrivals]
        if long := sum(length > context for length in lengths):
            say(
                f"{long} of {len(lengths)} requests are longer than the server's context of "
                f"{context} tokens, the longest {max(lengths)}: it will refuse them. "
                "--length-scale and --cap-tokens make them shorter."
            )
    if limit < len(load.arrivals):
        say(f"There can be {limit} connections at a time; requests beyond them will fail.")


def _session() -> aiohttp.ClientSession:
    # Nothing here may make a request wait: no limit of connections, no look-up of names anew.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=None)
    patience = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    # Not through a proxy that the environment may name: it would be measured too.
    return aiohttp.ClientSession(connector=connector, timeout=patience, trust_env=False)


@contextlib.contextmanager
def _interrupts(sender: Sender) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    pressed = iter((sender.stop,))
    loop.add_signal_handler(signal.SIGINT, lambda: next(pressed, sender.cut)())
    loop.add_signal_handler(signal.SIGTERM, sender.cut)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


@contextlib.asynccontextmanager
async def _beside(work: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do something else while the context lasts."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(clock: Clock, tally: Tally, progress: Callable[[float, Tally], None]) -> None:
    while True:
        progress(clock.now(), tally)
        await asyncio.sleep(_PROGRESS_S)

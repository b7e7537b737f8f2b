"""Single faults on a running system: three replicas, two gateways, streams under way.

All tests share one server and one set of streams, whose text in calm is asked for once.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.chaos.load import connect
from tests.chaos.model import lively_model
from tests.deployments.conftest import Server
from tests.deployments.operate import deploy
from tests.deployments.streams import Body, Reply, Watch, ask, condition, request, start

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

REPLICAS, GATEWAYS = 3, 2
BLOCKS, BLOCK_TOKENS = 256, 16
SILENT_S = 3.0
# The router looks once a second and counts are handed over as often; the rest is for a machine
# that has other work to do.
MOVED_S = SILENT_S + 10
# Between two requests of a client, so that new replicas have something left to start with.
PAUSE_S = 0.2
SETTINGS: dict[str, Any] = {
    "replicas": REPLICAS,
    "gateways": GATEWAYS,
    "threads": 1,
    "num_blocks": BLOCKS,
    "block_size": BLOCK_TOKENS,
    "max_num_seqs": 24,
    # All that waits does so in the router: order and room can be told exactly.
    "lookahead": 0,
    "silent_s": SILENT_S,
    "drain_s": 2.0,
}
OTHERS = {**SETTINGS, "aging_seconds": 6.0}
CHANGED = {**SETTINGS, "aging_seconds": 7.0}


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively_model(tiny_model_dir, tmp_path_factory.mktemp("lively"))


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[Server]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    server = Server(str(model), *flags)
    yield server
    server.stop()


@pytest.fixture
async def http(shared: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(shared.url, 400) as http:
        yield http


@pytest.fixture
async def watch(http: httpx.AsyncClient, shared: Server) -> Watch:
    """A look at a server that is whole again, whatever the test before did to it."""
    watch = Watch(http, shared)
    await condition(lambda: watch.whole(REPLICAS, GATEWAYS), 90)
    return watch


@pytest.fixture
def server(shared: Server, watch: Watch) -> Server:
    return shared


@pytest.fixture(scope="module")
def calm(shared: Server) -> list[str]:
    """What the streams say when nothing happens."""

    async def all_of_them() -> list[Reply]:
        async with connect(shared.url, len(STREAMS)) as http:
            return await asyncio.gather(*start(http, STREAMS))

    return [reply.text for reply in asyncio.run(all_of_them())]


def large(tokens: int, **more: Any) -> Body:
    """A request that no other fits beside: its prompt takes more than half of a pool."""
    return request("x" * (BLOCKS * BLOCK_TOKENS * 9 // 16), tokens, **more)


# Some for each replica, and long enough for what is done to them.
STREAMS = [request(f"Tale {i}:", 800, seed=i, temperature=0.3 * (i % 3)) for i in range(9)]


def kill(server: Server, kind: str, number: int = 0) -> None:
    server.processes(kind)[number].send_signal(signal.SIGKILL)


async def nothing_is_charged(watch: Watch, http: httpx.AsyncClient) -> None:
    """Large requests go one to each pool, so no grant takes room in one.

    One that found no room would wait, and go where another has ended.
    """
    before = await placements(watch)
    replies = await asyncio.gather(*start(http, [large(40) for _ in range(REPLICAS)]))
    assert all(reply.text for reply in replies)
    after = await placements(watch)
    assert {replica: after[replica] - before.get(replica, 0) for replica in after} == dict.fromkeys(
        after, 1
    )


async def placements(watch: Watch) -> dict[str, float]:
    """How many requests the router has sent to each replica."""
    page = await watch.metrics()
    return {k: v for k, v in page.items() if k.startswith("requests_placed_total{")}


async def all_run(watch: Watch) -> bool:
    """Whether every replica has something to lose."""
    page = await watch.metrics()
    running = [v for k, v in page.items() if k.startswith("num_requests_running{")]
    return len(running) == REPLICAS and all(running)


async def waits(watch: Watch, count: int) -> bool:
    """Whether so many requests wait in the router now."""
    return await watch.queued() == count


# ---- one order, and even use, through two gateways --------------------------------------


async def test_sixty_at_once_through_two_gateways_are_spread_evenly(
    watch: Watch, server: Server, http: httpx.AsyncClient
) -> None:
    """llumnix-ray#303, llm-d-router PR#2066: each gateway alone would not know of the others."""

    async def placed() -> list[float]:
        page = await watch.metrics()
        return [v for k, v in page.items() if k.startswith("requests_placed_total{")]

    async def all_placed() -> bool:
        return sum(await placed()) == sum(before) + 60

    await asyncio.gather(*start(http, [request("Hi", 1)] * 12))
    before = await placed()
    frozen = server.processes("Replica")
    try:
        # Nothing is heard from a replica until all are placed, and so none has ended by then.
        for process in frozen:
            process.suspend()
        tasks = start(http, [request("x" * 100, 10)] * 60)
        await condition(all_placed)
    finally:
        for process in frozen:
            process.resume()
    each = [after - old for after, old in zip(await placed(), before, strict=True)]
    assert max(each) - min(each) <= 2
    assert all(reply.text for reply in await asyncio.gather(*tasks))


# ---- clients that leave -----------------------------------------------------------------


async def test_300_cancels_at_random_moments_leave_nothing(
    watch: Watch, http: httpx.AsyncClient
) -> None:
    """ray#52533."""
    rng = Random(300)

    async def leave(number: int) -> None:
        body = large(200) if number % 5 == 0 else request("A story", 900)
        body = {**body, "priority": number % 3}
        task = asyncio.create_task(ask(http, body, stream=number % 2 == 0))
        await asyncio.wait([task], timeout=rng.uniform(0, 3))
        task.cancel()
        await asyncio.wait([task])

    await asyncio.gather(*(leave(number) for number in range(300)))
    await condition(watch.idle, 1.0)
    await nothing_is_charged(watch, http)


# ---- replicas ---------------------------------------------------------------------------


async def test_the_streams_of_a_frozen_replica_move_and_its_thaw_doubles_nothing(
    watch: Watch, server: Server, http: httpx.AsyncClient, calm: list[str]
) -> None:
    resumed = await watch.total("request_resumed_total")

    async def moved() -> bool:
        return await watch.total("request_resumed_total") > resumed

    tasks = start(http, STREAMS)
    await condition(lambda: all_run(watch))
    frozen = server.processes("Replica")[0]
    frozen.suspend()
    try:
        await condition(moved, MOVED_S)
    finally:
        frozen.resume()
    assert [reply.text for reply in await asyncio.gather(*tasks)] == calm
    await condition(lambda: watch.whole(REPLICAS, GATEWAYS))
    await nothing_is_charged(watch, http)


async def test_streams_wait_while_no_replica_is_left(
    watch: Watch, server: Server, http: httpx.AsyncClient, calm: list[str]
) -> None:
    async def nobody() -> bool:
        return not await watch.replicas()

    tasks = start(http, STREAMS)
    await condition(lambda: all_run(watch))
    for process in server.processes("Replica"):
        process.send_signal(signal.SIGKILL)
    await condition(nobody)
    late = asyncio.create_task(ask(http, STREAMS[0], stream=False))
    assert [reply.text for reply in await asyncio.gather(*tasks)] == calm
    assert (await late).text == calm[0]


# ---- the router -------------------------------------------------------------------------


async def test_a_killed_router_touches_no_stream_and_forgets_nobody(
    watch: Watch, server: Server, http: httpx.AsyncClient
) -> None:
    calm = await asyncio.gather(*start(http, [large(500), large(40)]))
    resumed = await watch.total("request_resumed_total")
    streams = start(http, [large(500) for _ in range(REPLICAS)])
    await condition(lambda: all_run(watch))
    low = start(http, [large(40) for _ in range(4)])
    await condition(lambda: waits(watch, 4))
    high = start(http, [large(40, priority=5) for _ in range(4)])
    await condition(lambda: waits(watch, 8))
    kill(server, "Router")
    assert {reply.text for reply in await asyncio.gather(*streams)} == {calm[0].text}
    urgent, others = await asyncio.gather(*high), await asyncio.gather(*low)
    assert {reply.text for reply in (*urgent, *others)} == {calm[1].text}
    # In order of rank. All urgent ones have places before any other has one, and then one on each
    # other replica may not have begun, however slow that is.
    began = [(reply.first, True) for reply in urgent] + [(reply.first, False) for reply in others]
    assert all(was_urgent for _, was_urgent in sorted(began)[: len(high) - REPLICAS + 1])
    # A new router begins to count at 0.
    assert await watch.total("request_resumed_total") in (0, resumed)
    await nothing_is_charged(watch, http)


# ---- a gateway --------------------------------------------------------------------------


async def test_when_a_gateway_is_killed_the_other_serves_and_nothing_stays_charged(
    watch: Watch, server: Server, http: httpx.AsyncClient, calm: list[str]
) -> None:
    tasks = start(http, STREAMS)
    await condition(lambda: all_run(watch))
    kill(server, "Gateway")
    others = await asyncio.gather(*start(http, [request("Hi", 5) for _ in range(20)]))
    assert all(reply.text for reply in others)
    replies = await asyncio.gather(*tasks)
    untouched = [i for i, reply in enumerate(replies) if reply.attempt.broken is None]
    assert 0 < len(untouched) < len(STREAMS)
    assert all(replies[i].text == calm[i] for i in untouched)
    await condition(watch.idle, 5.0)
    await nothing_is_charged(watch, http)


# ---- deployments that change ------------------------------------------------------------


async def test_a_redeploy_goes_on_though_new_replicas_die(
    watch: Watch, server: Server, model: Path
) -> None:
    """Serve gave it up at some death, and replaced no replica from then on."""
    before, gone = await watch.replicas(), set[str]()
    old, killed = {process.pid for process in server.processes("Replica")}, set[int]()

    async def a_new_one_serves() -> bool:
        return not await watch.replicas() <= before | gone

    async def all_are_new() -> bool:
        return not before & await watch.replicas() and await watch.whole(REPLICAS, GATEWAYS)

    await deploy(server, OTHERS | {"model": str(model)}, wait=False)
    # As many as would be too many if none had served.
    while len(killed) < 2 * REPLICAS:
        await condition(a_new_one_serves)
        gone |= await watch.replicas() - before
        for process in server.processes("Replica"):
            if process.pid not in old:
                process.kill()
                killed.add(process.pid)
    await condition(all_are_new, 120)


async def test_a_redeploy_under_steady_load_fails_no_request(
    watch: Watch, server: Server, http: httpx.AsyncClient, model: Path
) -> None:
    """production-stack#601, ray#66252."""
    bodies = [request(f"Sea {i}", 20 + 10 * i, seed=i, temperature=0.7) for i in range(3)]
    calm = [reply.text for reply in await asyncio.gather(*start(http, bodies))]
    before = await watch.replicas()
    redeploy = asyncio.create_task(deploy(server, CHANGED | {"model": str(model)}))
    rounds = 0

    async def keep_asking(number: int) -> None:
        nonlocal rounds
        while not redeploy.done():
            reply = await ask(http, bodies[number], stream=number % 2 == 0)
            assert reply.text == calm[number]
            rounds += 1
            await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(keep_asking(number) for number in range(len(bodies))))
    await redeploy
    assert rounds > len(bodies)
    assert not before & await watch.replicas()


async def test_streams_are_whole_when_three_replicas_become_one(
    watch: Watch, server: Server, http: httpx.AsyncClient, model: Path, calm: list[str]
) -> None:
    tasks = start(http, STREAMS)
    await condition(lambda: all_run(watch))
    await deploy(server, CHANGED | {"model": str(model)}, replicas=1)
    assert [reply.text for reply in await asyncio.gather(*tasks)] == calm
    await condition(lambda: watch.whole(1, GATEWAYS))

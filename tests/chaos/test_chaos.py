"""Load from many clients while processes are killed and frozen under it, and replaced.

``make chaos`` runs it for longer: CHAOS_S and CHAOS_SEED are its seconds and its seed.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.chaos.attempt import Attempt
from tests.chaos.faults import Fault
from tests.chaos.killer import Killer
from tests.chaos.load import Client, connect
from tests.chaos.menu import Dish, menu
from tests.chaos.model import lively_model
from tests.chaos.options import flags, options
from tests.chaos.oracle import answers
from tests.chaos.redeployer import Redeployer
from tests.chaos.report import report, summary
from tests.chaos.scraper import Scraper
from tests.chaos.verdict import complaint
from tests.deployments.conftest import Server
from tests.deployments.streams import Watch, condition, request, start

SECONDS = float(os.environ.get("CHAOS_S", "10"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))

REPLICAS, GATEWAYS, SEATS, LOOKAHEAD = 3, 2, 6, 2
PLACES = REPLICAS * (SEATS + LOOKAHEAD)
CLIENTS = 28
SILENT_S = 3.0
GAP_S = (0.5, 3.5)
DEPLOY_GAP_S = (15.0, 35.0)
# Some are thawed before the server has noticed, some long after.
FREEZE_S = (0.2 * SILENT_S, 2 * SILENT_S)
WHOLE_S = 60.0
_WAITING = "num_requests_waiting"

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(SECONDS + 300)]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively_model(tiny_model_dir, tmp_path_factory.mktemp("lively"))


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """Pools that are soon full, so that requests wait and are preempted; short queues."""
    return {
        "replicas": REPLICAS,
        "gateways": GATEWAYS,
        "threads": 1,
        "num_blocks": 96,
        "max_num_seqs": SEATS,
        "lookahead": LOOKAHEAD,
        "max_queued": 6,
        "aging_seconds": 1.0,
        "silent_s": SILENT_S,
        "drain_s": 3.0,
        **options(Random(SEED)),
    }


@pytest.fixture(scope="module")
def server(model: Path, settings: dict[str, Any]) -> Iterator[Server]:
    server = Server(str(model), *flags(settings))
    yield server
    server.stop()


async def test_no_client_sees_more_than_a_pause_or_a_refusal(
    model: Path, server: Server, settings: dict[str, Any]
) -> None:
    dishes = menu(Random(SEED), 60)
    right = await asyncio.to_thread(answers, model, dishes)
    attempts: list[Attempt] = []
    faults: list[Fault] = []
    began = time.monotonic()
    async with connect(server.url, 2) as http:
        scraper = Scraper(http)
        async with asyncio.TaskGroup() as group:
            scraping = group.create_task(scraper.run())
            await _run(server, settings | {"model": str(model)}, dishes, attempts, faults)
            scraping.cancel()
    complaints = [
        (attempt, why)
        for attempt in attempts
        if (why := complaint(attempt, right[attempt.dish], faults))
    ]
    print(f"seed {SEED}: {' '.join(flags(options(Random(SEED))))}")
    print(f"seed {SEED}: {summary(attempts, faults)}")
    print(f"seed {SEED}: {scraper}")
    if complaints:
        pytest.fail(report(complaints, faults, began, server.logs), pytrace=False)
    assert not scraper.wrong
    # It was no calm that was survived, and not by turning everyone away.
    assert faults
    assert sum(attempt.complete for attempt in attempts) > CLIENTS
    async with connect(server.url, 2 * PLACES) as http:
        watch = Watch(http, server)
        await condition(lambda: watch.whole(REPLICAS, GATEWAYS), WHOLE_S)
        await _require_room(http, watch)


async def _run(
    server: Server,
    settings: dict[str, Any],
    dishes: list[Dish],
    attempts: list[Attempt],
    faults: list[Fault],
) -> None:
    """Serve clients, and kill, until the time is up; the killing ends a little earlier."""
    closing = time.monotonic() + SECONDS

    def served() -> int:
        return sum(attempt.complete for attempt in attempts)

    killer = Killer(server, Random(SEED), GAP_S, FREEZE_S, faults, served)
    redeployer = Redeployer(server, settings, Random(f"{SEED} deploy"), DEPLOY_GAP_S, faults)
    async with connect(server.url, CLIENTS) as http, asyncio.TaskGroup() as group:
        group.create_task(killer.run(closing))
        group.create_task(redeployer.run(closing))
        for number in range(CLIENTS):
            rng = Random(f"{SEED} {number}")
            client = Client(f"chaos-{number}", http, dishes, rng, attempts)
            group.create_task(client.run(closing))


async def _require_room(http: httpx.AsyncClient, watch: Watch) -> None:
    """No grant is left: the router hands out exactly as many places as a fresh one would."""

    async def all_taken() -> bool:
        page = await watch.metrics()
        inside = [v for k, v in page.items() if k.startswith(("num_requests_running", _WAITING))]
        return page[f'{_WAITING}{{replica="router"}}'] == 0 and sum(inside) == PLACES

    tasks = start(http, [request("A", 800) for _ in range(PLACES)])
    try:
        await condition(all_taken)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await condition(watch.idle)

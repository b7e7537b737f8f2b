"""What is read of a server's metrics."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from experiments.replay.fleet import Fleet, read
from experiments.simulator.outcome import Sample
from tests.experiments.replay.scripted import METRICS, HandClock, Scripted


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted().running() as server:
        server.metrics = METRICS
        yield server


@pytest.fixture
async def fleet(server: Scripted) -> AsyncIterator[Fleet]:
    async with aiohttp.ClientSession() as session:
        yield Fleet(session, server.url)


def preempted(a: int, b: int | None) -> str:
    """The page with other counts; None: that replica is gone."""
    lines = [line for line in METRICS.splitlines() if "num_preemptions_total" not in line]
    counts = {"a": a} if b is None else {"a": a, "b": b}
    name = "tidegate:num_preemptions_total"
    lines += [f'{name}{{model_name="m",replica="{one}"}} {n}' for one, n in counts.items()]
    return "\n".join(lines) + "\n"


async def test_a_look_makes_a_sample(fleet: Fleet) -> None:
    assert await fleet.look()
    assert fleet.samples == [
        Sample(
            at=0.0,
            wanted=2,
            serving=2,
            starting=0,
            queued=5,
            oldest_wait_s=1.5,
            waiting=3,
            running=4,
            free_blocks=48,
            total_blocks=96,
        )
    ]


async def test_counts_are_what_was_added_since_the_first_look(
    server: Scripted, fleet: Fleet
) -> None:
    await fleet.look()
    assert fleet.counts["preemptions"] == 0
    server.metrics = preempted(14, 3)
    await fleet.look()
    assert fleet.counts["preemptions"] == 4


async def test_a_counter_that_begins_anew_and_a_new_replicas_are_counted(
    server: Scripted, fleet: Fleet
) -> None:
    await fleet.look()
    server.metrics = preempted(2, None)  # a died at 10 or above, and has counted 2 since
    await fleet.look()
    server.metrics = preempted(2, 5)
    await fleet.look()
    server.metrics = preempted(2, 5).replace('"b"', '"c"')  # another replica
    await fleet.look()
    assert fleet.counts["preemptions"] == 2 + 2 + 5


async def test_of_a_counter_with_several_reasons_only_the_one_is_counted(
    server: Scripted, fleet: Fleet
) -> None:
    name = "tidegate:request_resumed_total"
    reasons = {"lost": 0, "drained": 0}

    def page() -> str:
        lines = [f'{name}{{model_name="m",reason="{one}"}} {n}' for one, n in reasons.items()]
        return METRICS + "\n".join(lines) + "\n"

    server.metrics = page()
    await fleet.look()
    reasons |= {"lost": 2, "drained": 5}
    server.metrics = page()
    await fleet.look()
    assert (fleet.counts["resumed"], fleet.counts["drained"]) == (2, 5)


async def test_replica_seconds_are_paid_from_look_to_look(server: Scripted, fleet: Fleet) -> None:
    clock = HandClock()
    await fleet.look(clock)
    await clock.move(2.0)
    server.metrics = METRICS.replace('"serving"} 2', '"serving"} 4')
    await fleet.look(clock)
    await clock.move(3.0)
    await fleet.look(clock)
    assert fleet.replica_s == 2 * 3 + 1 * 5
    assert fleet.busy_s == 3.0
    assert [sample.at for sample in fleet.samples] == [0.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "page",
    [None, "", "vllm:num_requests_running 1\n", "tidegate:num_replicas{broken\n", "<html>"],
)
async def test_a_server_without_these_metrics_gives_no_sample(
    server: Scripted, fleet: Fleet, page: str | None
) -> None:
    server.metrics = page
    assert not await fleet.look()
    assert (fleet.samples, fleet.counts, fleet.replica_s) == ([], {}, 0.0)


async def test_a_look_that_fails_is_left_out(server: Scripted, fleet: Fleet) -> None:
    clock = HandClock()
    await fleet.look(clock)
    server.metrics = None
    await clock.move(1.0)
    assert not await fleet.look(clock)
    server.metrics = METRICS
    await clock.move(2.0)
    assert await fleet.look(clock)
    assert [sample.at for sample in fleet.samples] == [0.0, 2.0]
    assert fleet.replica_s == 6.0


def test_no_more_of_a_page_is_read_than_is_needed() -> None:
    assert "generation_tokens_total" not in read(METRICS)
    assert read(METRICS)["num_replicas"][("model_name", "m"), ("state", "leaving")] == 1

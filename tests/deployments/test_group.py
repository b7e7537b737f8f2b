"""Sequences that are let in together or not at all, and leave nothing however that ends."""

import asyncio
import time

import pytest

from deployments import group
from deployments.messages import Refusal, RefusalKind
from deployments.order import END, Failed, Refused
from tests.deployments.sequences import BUSY, FakeReplica, FakeRouter, Run, settle, until

KEYS = ("k1", "k2", "k3")


def make(router: FakeRouter, a: FakeReplica) -> list[Run]:
    return [Run(router, a, key=key, start=False) for key in KEYS]


async def admit_and_start(router: FakeRouter, runs: list[Run]) -> "list[asyncio.Task[None]]":
    await group.admit([run.sequence for run in runs], router)  # type: ignore[arg-type]
    return [run.sequence.start() for run in runs]


async def test_each_then_asks_for_the_place_that_it_has() -> None:
    router, a = FakeRouter("a", "a", "a"), FakeReplica("a")
    tasks = await admit_and_start(router, make(router, a))
    await until(lambda: len(a.submitted) == 3)
    assert [(one.id, one.call, one.again) for one in router.admitted] == [
        (key, "k1", False) for key in KEYS
    ]
    # With "again", should the router be another one by now.
    assert [(one.id, one.call, one.again) for one, _ in router.placed] == [
        (key, "k1", True) for key in KEYS
    ]
    a.send(7, finish="stop")
    await asyncio.gather(*tasks)
    assert router.released == [(key, True) for key in KEYS]


async def test_what_goes_on_elsewhere_is_still_of_the_same_call() -> None:
    router, a = FakeRouter("a", "a", "a"), FakeReplica("a")
    tasks = await admit_and_start(router, make(router, a))
    await until(lambda: len(a.submitted) == 3)
    await settle()
    a.die()
    await until(lambda: len(router.placed) == 6)
    later = [one for one, _ in router.placed[3:]]
    assert {(one.call, one.cost) for one in later} == {("k1", 0)}
    assert {one.cost for one, _ in router.placed[:3]} == {5}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert router.live() == 0


@pytest.mark.parametrize(
    ("refusal", "error"), [(BUSY, Refused), (Refusal(RefusalKind.ABANDONED), Failed)]
)
async def test_refused_none_of_them_is_kept(refusal: Refusal, error: type[Exception]) -> None:
    router, a = FakeRouter(), FakeReplica("a")
    router.group = refusal
    runs = make(router, a)
    with pytest.raises(error):
        await admit_and_start(router, runs)
    assert router.live() == 0
    assert [run.turns for run in runs] == [[("ended", refusal.kind.value, 0)]] * 3
    reason = {"reason": refusal.kind.value}
    assert [run.counted("admission_rejections_total", **reason) for run in runs] == [1, 1, 1]


@pytest.mark.parametrize("steps", range(24))
async def test_cancelled_at_any_moment_nothing_is_left(steps: int) -> None:
    """Also between the admission and the first step of a sequence's own task."""
    router, a = FakeRouter("a", "a", "a"), FakeReplica("a")
    tasks: list[asyncio.Task[None]] = []

    async def call() -> None:
        try:
            tasks.extend(await admit_and_start(router, make(router, a)))
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()

    whole = asyncio.create_task(call())
    for _ in range(steps):
        await asyncio.sleep(0)
    whole.cancel()
    await asyncio.wait([whole])
    await settle()
    assert (router.live(), a.running, a.listeners) == (0, set(), {})
    assert all(task.done() for task in tasks)


async def test_time_runs_while_they_wait_for_a_router() -> None:
    router, a = FakeRouter(), FakeReplica("a")
    router.gate = asyncio.Event()
    end_at = time.monotonic() + 0.01
    runs = [Run(router, a, key=key, start=False, end_at=end_at) for key in KEYS]
    with pytest.raises(Refused) as caught:
        await asyncio.wait_for(admit_and_start(router, runs), 5)
    assert caught.value.refusal == Refusal(RefusalKind.EXPIRED, message=END)
    assert router.live() == 0
    assert [run.counted("request_expired_total", limit=END) for run in runs] == [1, 1, 1]
    assert [run.turns for run in runs] == [[("ended", "expired", 0)]] * 3


async def test_one_that_is_cancelled_before_its_first_step_gives_its_place_up() -> None:
    router, a = FakeRouter(), FakeReplica("a")
    runs = make(router, a)
    tasks = await admit_and_start(router, runs)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await settle()
    assert (router.placed, router.live()) == ([], 0)
    assert [run.turns for run in runs] == [[("ended", "abort", 0)]] * 3

"""When reports go out and what they carry."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from deployments.messages import Heard, Vitals
from deployments.news import Figures, News
from deployments.prefix_news import MOST_NEWS, PrefixNews
from deployments.reporting import Reporter
from router.report import Report

FIGURES = Figures(
    total_blocks=10,
    free_blocks=4,
    running=1,
    max_seqs=8,
    waiting=0,
    waiting_blocks=0,
    max_waiting=3,
    leaving=False,
    held=("x",),
    ending=(),
    vitals=Vitals(True, 0, 0),
)


class Desk:
    """Receives reports; fails or asks for a full one when told to."""

    def __init__(
        self, interval_s: float, heartbeat_s: float, prefixes: PrefixNews | None = None
    ) -> None:
        self.reports: list[Report] = []
        self.arrived = asyncio.Event()
        self.fail = False
        self.full = False
        self.figures = FIGURES
        news = News("r", "f", interval_s, heartbeat_s, prefixes)
        self.reporter = Reporter(news, lambda: self.figures, self.send)
        self.task = asyncio.get_running_loop().create_task(self.reporter.run())

    async def send(self, report: Report, vitals: Vitals) -> Heard:
        self.arrived.set()
        if self.fail:
            raise ConnectionError("no router")
        self.reports.append(report)
        return Heard(self.full, {"n": len(self.reports)})

    async def count(self, number: int) -> list[Report]:
        async with asyncio.timeout(5):
            while len(self.reports) < number:
                self.arrived.clear()
                await self.arrived.wait()
        return self.reports

    async def close(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def test_the_first_report_is_full_and_the_next_tell_what_changed() -> None:
    desk = Desk(interval_s=0.001, heartbeat_s=60)
    await desk.count(1)
    desk.reporter.admitted("a")
    desk.reporter.admitted("b")
    desk.reporter.ended("a")
    await desk.count(2)
    desk.figures = replace(FIGURES, free_blocks=3)
    desk.reporter.moved()
    first, second, third = await desk.count(3)
    await desk.close()
    assert (first.held, first.admitted, first.ended) == (("x",), (), ())
    assert (second.held, second.admitted, second.ended) == (None, ("a", "b"), ("a",))
    assert (third.admitted, third.ended) == ((), ())
    assert [report.seq for report in desk.reports] == [1, 2, 3]


async def test_what_did_not_arrive_is_said_again_in_full() -> None:
    desk = Desk(interval_s=0.001, heartbeat_s=0.01)
    await desk.count(1)
    desk.fail = True
    desk.reporter.ended("a")
    desk.arrived.clear()
    await desk.arrived.wait()
    desk.fail = False
    reports = await desk.count(2)
    await desk.close()
    assert reports[1].ended == ("a",)
    assert reports[1].held == ("x",)


async def test_what_the_figures_count_no_more_is_named_ended_with_them() -> None:
    """The engine had freed the blocks, the report did not say whose: they were counted twice."""
    desk = Desk(interval_s=0.001, heartbeat_s=60)
    await desk.count(1)
    desk.reporter.admitted("a")
    desk.figures = replace(FIGURES, free_blocks=9, ending=("a",))
    await desk.count(2)
    desk.figures = replace(FIGURES, free_blocks=9)
    desk.reporter.ended("a")
    _, second, third = await desk.count(3)
    await desk.close()
    assert (second.free_blocks, second.admitted, second.ended) == (9, ("a",), ("a",))
    assert third.ended == ("a",)


async def test_a_router_that_does_not_know_the_replica_gets_all() -> None:
    desk = Desk(interval_s=0.001, heartbeat_s=0.01)
    desk.full = True
    reports = await desk.count(3)
    await desk.close()
    assert all(report.held == ("x",) for report in reports)


async def test_a_step_that_changes_nothing_is_not_told() -> None:
    desk = Desk(interval_s=0.001, heartbeat_s=60)
    await desk.count(1)
    for _ in range(5):
        desk.reporter.moved()
        await asyncio.sleep(0.002)
    assert len(desk.reports) == 1
    desk.figures = replace(FIGURES, waiting=1)
    desk.reporter.moved()
    await desk.count(2)
    await desk.close()


@pytest.mark.parametrize(
    ("total", "free", "news"),
    [(10, 4, False), (10, 3, True), (10, 5, True), (400, 396, False), (400, 395, True)],
)
def test_a_hundredth_of_the_pool_fewer_is_no_news(total: int, free: int, news: bool) -> None:
    """Decodes of many take a block with nearly each step: every one was told."""
    said = replace(FIGURES, total_blocks=total, free_blocks=4 if total == 10 else 400)
    now = replace(said, free_blocks=free)
    assert now.is_news(said) is news
    assert replace(now, running=2).is_news(said)
    assert now.is_news(None)


async def test_few_blocks_at_a_time_are_told_when_they_have_become_many() -> None:
    desk = Desk(interval_s=0.001, heartbeat_s=60)
    desk.figures = replace(FIGURES, total_blocks=400, free_blocks=400)
    await desk.count(1)
    for trifle, many in ((396, 395), (391, 390)):
        desk.figures = replace(desk.figures, free_blocks=trifle)
        desk.reporter.moved()
        await asyncio.sleep(0.01)
        desk.figures = replace(desk.figures, free_blocks=many)
        desk.reporter.moved()
        await desk.count(len(desk.reports) + 1)
    await desk.close()
    assert [report.free_blocks for report in desk.reports] == [400, 395, 390]


async def test_room_is_told_at_once_and_steps_are_not() -> None:
    desk = Desk(interval_s=60, heartbeat_s=60)
    await desk.count(1)
    desk.reporter.moved()
    desk.reporter.admitted("a")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(desk.reports) == 1
    desk.reporter.ended("a")
    await desk.count(2)
    await desk.close()


class FullCache:
    """Has more news than one report can tell."""

    def __init__(self) -> None:
        self.stored = list(range(MOST_NEWS + 1))
        self.listings = 0

    def prefix_events(self) -> tuple[list[int], list[int]]:
        stored, self.stored = self.stored, []
        return stored, []

    def held_prefixes(self, most: int) -> list[int]:
        self.listings += 1
        return [7]


async def test_prefixes_go_with_reports_and_in_full_once_a_lost_one_is_made_good() -> None:
    """Fault: each report that fails costs a list of all that is held, made under a lock."""
    cache = FullCache()
    desk = Desk(interval_s=0.001, heartbeat_s=60, prefixes=PrefixNews(cache))
    await desk.count(1)
    desk.reporter.ended("a")
    await desk.count(2)
    desk.reporter.moved()  # what is left over is news enough
    first, second, third = await desk.count(3)
    desk.fail = True
    desk.reporter.ended("b")
    for _ in range(3):
        desk.arrived.clear()
        desk.reporter.moved()
        await desk.arrived.wait()
    assert cache.listings == 1
    desk.fail = False
    desk.reporter.moved()
    *_, fourth = await desk.count(4)
    desk.reporter.moved()  # what is owed is news enough
    *_, last = await desk.count(5)
    await desk.close()
    assert (first.prefixes, first.stored) == ((7,), ())
    assert (second.prefixes, len(second.stored), len(third.stored)) == (None, MOST_NEWS, 1)
    assert (fourth.prefixes, fourth.held) == (None, ("x",))
    assert (last.prefixes, last.held) == ((7,), None)


async def test_an_idle_replica_is_heard_of() -> None:
    desk = Desk(interval_s=0.001, heartbeat_s=0.01)
    await desk.count(3)
    await desk.close()

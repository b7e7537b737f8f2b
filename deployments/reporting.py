"""Reporter: sends a replica's news to the router."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from deployments.messages import Heard, Vitals
from deployments.news import Figures, News
from router.report import Report

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 5.0


class Reporter:
    """Sends reports when `deployments.news.News` says so, one after the other.

    Args:
        news: what there is to tell.
        figures: reads the replica's state. Called in the same turn of the event loop in
            which the lists are read, so that both tell of the same moment.
        send: delivers a report; returns what the router answers.
    """

    def __init__(
        self,
        news: News,
        figures: Callable[[], Figures],
        send: Callable[[Report, Vitals], Awaitable[Heard]],
    ) -> None:
        self._news = news
        self._figures = figures
        self._send = send
        self._demand: Mapping[str, float] = {}
        self._stirred = asyncio.Event()

    @property
    def demand(self) -> Mapping[str, float]:
        """What the router last said that the autoscaler is to know."""
        return self._demand

    def admitted(self, key: str) -> None:
        """A request was taken."""
        if self._news.admitted(key):
            self._stirred.set()

    def ended(self, key: str) -> None:
        """A request finished, failed or was aborted; its blocks are free."""
        if self._news.ended(key):
            self._stirred.set()

    def moved(self) -> None:
        """A step was done."""
        if self._news.moved():
            self._stirred.set()

    async def run(self) -> None:
        """Report until cancelled."""
        news = self._news
        while True:
            await self._report()
            while True:
                while (left_s := news.look_at - time.monotonic()) > 0:
                    self._stirred.clear()
                    await _within(self._stirred, left_s)
                if news.look(time.monotonic(), self._figures):
                    break

    async def _report(self) -> None:
        figures = self._figures()
        report = self._news.report(time.monotonic(), figures)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                heard = await self._send(report, figures.vitals)
        except Exception as error:
            # Whatever it was, it is the router's trouble: this replica goes on serving.
            logger.warning("report %d did not reach the router: %r", report.seq, error)
            self._news.lost()
            return
        self._demand = heard.demand
        self._news.arrived(heard.full)


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return

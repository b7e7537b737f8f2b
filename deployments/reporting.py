"""When a replica tells the router how it is doing, and what happened since it last did."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from deployments.messages import Heard, Vitals
from deployments.prefix_news import PrefixNews, Told
from router.report import Report

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 5.0
_TRIFLE = 100  # of so many blocks, one fewer free is no news: decodes take some with each step


@dataclass(frozen=True, slots=True)
class Figures:
    """A replica's state at one moment, in the units of ``Report``.

    Attributes:
        leaving: the replica takes nothing new.
        ending: ids that the figures count no more, although `Reporter.ended` has not been
            called for them yet.
    """

    total_blocks: int
    free_blocks: int
    running: int
    max_seqs: int
    waiting: int
    waiting_blocks: int
    max_waiting: int
    leaving: bool
    held: tuple[str, ...] = field(compare=False)
    ending: tuple[str, ...] = field(compare=False)
    vitals: Vitals = field(compare=False)

    def is_news(self, said: "Figures | None") -> bool:
        """Whether the router, who was told of ``said``, would decide otherwise from these."""
        if said is None:
            return True
        fewer = said.free_blocks - self.free_blocks
        if 0 < fewer * _TRIFLE <= self.total_blocks:
            said = replace(said, free_blocks=self.free_blocks)
        return self != said


class Reporter:
    """Sends reports: at once when room came free, soon when something moved, else a heartbeat.

    A step that changes nothing that the router looks at is not worth a message: a call
    through Serve costs a millisecond of the time in which the replica computes.

    At most one is under way. Ids stay on the lists until a report that names them has
    arrived, so a report that is lost costs nothing.

    Args:
        replica: the replica's name, new for every life.
        kind: what it computes with.
        figures: reads the replica's state. Called in the same turn of the event loop in
            which the lists are read, so that both tell of the same moment.
        send: delivers a report; returns what the router answers.
        interval_s: least time between two reports unless room came free.
        heartbeat_s: most time between two reports.
        prefixes: what the prefix cache holds, if the router places by that. It goes with reports
            that are sent anyway: what is on its way to a replica counts there as held.
    """

    def __init__(
        self,
        replica: str,
        kind: str,
        figures: Callable[[], Figures],
        send: Callable[[Report, Vitals], Awaitable[Heard]],
        interval_s: float,
        heartbeat_s: float,
        prefixes: PrefixNews | None = None,
    ) -> None:
        self._replica = replica
        self._kind = kind
        self._figures = figures
        self._send = send
        self._interval_s = interval_s
        self._heartbeat_s = heartbeat_s
        self._prefixes = prefixes
        self._admitted: list[str] = []
        self._ended: list[str] = []
        self._seq = 0
        self._full = True
        self._said: Figures | None = None
        self._demand: Mapping[str, float] = {}
        self._moved = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def demand(self) -> Mapping[str, float]:
        """What the router last said that the autoscaler is to know."""
        return self._demand

    def admitted(self, key: str) -> None:
        """A request was taken."""
        self._admitted.append(key)
        self._moved.set()

    def ended(self, key: str) -> None:
        """A request finished, failed or was aborted; its blocks are free."""
        self._ended.append(key)
        self._moved.set()
        self._room.set()

    def moved(self) -> None:
        """A step was done."""
        self._moved.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            began = time.monotonic()
            await self._report()
            due = began + self._heartbeat_s
            while True:
                await _within(self._moved, due - time.monotonic())
                await _within(self._room, began + self._interval_s - time.monotonic())
                self._moved.clear()
                self._room.clear()
                began = time.monotonic()
                if self._news() or began >= due:
                    break

    def _news(self) -> bool:
        left = self._prefixes is not None and self._prefixes.left
        moved = self._admitted or self._ended or self._full or left
        return bool(moved or self._figures().is_news(self._said))

    async def _report(self) -> None:
        figures = self._said = self._figures()
        told = Told() if self._prefixes is None else self._prefixes.collect(full=self._full)
        admitted, ended = len(self._admitted), len(self._ended)
        self._seq += 1
        report = Report(
            replica=self._replica,
            seq=self._seq,
            total_blocks=figures.total_blocks,
            free_blocks=figures.free_blocks,
            running=figures.running,
            max_seqs=figures.max_seqs,
            waiting=figures.waiting,
            waiting_blocks=figures.waiting_blocks,
            max_waiting=figures.max_waiting,
            kind=self._kind,
            leaving=figures.leaving,
            admitted=tuple(self._admitted),
            # Ending ones are named again when their end comes, which changes nothing.
            ended=(*self._ended, *figures.ending),
            held=figures.held if self._full else None,
            stored=told.stored,
            removed=told.removed,
            prefixes=told.prefixes,
        )
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                heard = await self._send(report, figures.vitals)
        except Exception as error:
            # Whatever it was, it is the router's trouble: this replica goes on serving.
            logger.warning("report %d did not reach the router: %r", self._seq, error)
            self._full = True
            if self._prefixes is not None:
                self._prefixes.lost()
            return
        if self._prefixes is not None:
            self._prefixes.arrived()
        self._full, self._demand = heard.full, heard.demand
        del self._admitted[:admitted]
        del self._ended[:ended]


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return

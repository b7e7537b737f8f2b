"""News: what a replica has to tell the router, and when. No clock, no event loop, no network."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from deployments.messages import Vitals
from deployments.prefix_news import PrefixNews, Told
from engine.scheduler_config import SchedulerStats
from router.report import Report

_TRIFLE = 100  # of so many blocks, one fewer free is no news: decodes take some with each step


@dataclass(frozen=True, slots=True)
class Figures:
    """A replica's state at one moment, in the units of ``Report``.

    Attributes:
        leaving: the replica takes nothing new.
        ending: ids that the figures count no more, although `News.ended` has not been
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
        trifle = 0 <= fewer * _TRIFLE <= self.total_blocks
        return not trifle or self._others != said._others

    @property
    def _others(self) -> tuple[int, ...]:
        """All that is compared but the free blocks."""
        return (
            self.total_blocks,
            self.running,
            self.max_seqs,
            self.waiting,
            self.waiting_blocks,
            self.max_waiting,
            self.leaving,
        )


def figures_of(
    stats: SchedulerStats,
    *,
    max_seqs: int,
    max_waiting: int,
    leaving: bool,
    held: tuple[str, ...],
    ending: tuple[str, ...],
    vitals: Vitals,
) -> Figures:
    """Return the figures of a replica whose scheduler stands there."""
    return Figures(
        total_blocks=stats.total_blocks,
        free_blocks=stats.free_blocks,
        running=stats.running,
        max_seqs=max_seqs,
        waiting=stats.waiting,
        waiting_blocks=stats.waiting_blocks,
        max_waiting=max_waiting,
        leaving=leaving,
        held=held,
        ending=ending,
        vitals=vitals,
    )


class News:
    """Decides when a report is due, and writes it.

    At once when room came free, soon when something moved, else as a heartbeat. A step that
    changes nothing that the router looks at is not worth a report: a call through Serve costs
    a millisecond of the time in which the replica computes.

    At most one report is under way: after `report` comes `arrived` or `lost`. Ids stay on the
    lists until a report that names them has arrived, so one that is lost costs nothing. Times
    are of the caller's clock, in seconds, and never go back.

    Args:
        replica: the replica's name, new for every life.
        kind: what it computes with.
        interval_s: least time between two reports unless room came free.
        heartbeat_s: most time between two reports.
        prefixes: what the prefix cache holds, if the router places by that. It goes with reports
            that are sent anyway: what is on its way to a replica counts there as held.
    """

    def __init__(
        self,
        replica: str,
        kind: str,
        interval_s: float,
        heartbeat_s: float,
        prefixes: PrefixNews | None = None,
    ) -> None:
        self._replica = replica
        self._kind = kind
        self._interval_s = interval_s
        self._heartbeat_s = heartbeat_s
        self._prefixes = prefixes
        self._admitted: list[str] = []
        self._ended: list[str] = []
        self._named = (0, 0)  # how many of each the report under way names
        self._seq = 0
        self._full = True
        self._said: Figures | None = None
        self._moved = False
        self._room = False
        self._looked_at = -math.inf
        self._due = -math.inf

    @property
    def seq(self) -> int:
        """The number of the last report."""
        return self._seq

    @property
    def full(self) -> bool:
        """Whether the next report names all that the replica holds."""
        return self._full

    @property
    def look_at(self) -> float:
        """When to look next whether there is news; a time that has passed is now."""
        if self._room:
            return self._looked_at
        soonest = self._looked_at + self._interval_s
        return soonest if self._moved else max(soonest, self._due)

    def admitted(self, key: str) -> bool:
        """A request was taken; returns whether `look_at` has changed."""
        self._admitted.append(key)
        return self.moved()

    def ended(self, key: str) -> bool:
        """A request finished, failed or was aborted; its blocks are free. Returns as `admitted`."""
        self._ended.append(key)
        before, self._moved, self._room = self._room, True, True
        return not before

    def moved(self) -> bool:
        """A step was done. Returns as `admitted`."""
        before, self._moved = self._moved, True
        return not before

    def look(self, now: float, figures: Callable[[], Figures]) -> bool:
        """Return whether a report is to be sent now; to be called at `look_at`.

        Args:
            now: the time.
            figures: reads them; not called if there is news whatever they are.
        """
        self._moved = self._room = False
        self._looked_at = now
        left = self._prefixes is not None and self._prefixes.left
        if self._admitted or self._ended or self._full or left or now >= self._due:
            return True
        return figures().is_news(self._said)

    def report(self, now: float, figures: Figures) -> Report:
        """Return the report to send; ``figures`` were read in the same turn as this is called."""
        self._looked_at, self._due = now, now + self._heartbeat_s
        self._said = figures
        told = Told() if self._prefixes is None else self._prefixes.collect(full=self._full)
        self._named = len(self._admitted), len(self._ended)
        self._seq += 1
        return Report(
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

    def arrived(self, full: bool) -> None:
        """The last report has arrived.

        Args:
            full: the next one is to name all that the replica holds.
        """
        if self._prefixes is not None:
            self._prefixes.arrived()
        self._full = full
        admitted, ended = self._named
        del self._admitted[:admitted]
        del self._ended[:ended]

    def lost(self) -> None:
        """The last report did not arrive, as far as is known."""
        self._full = True
        if self._prefixes is not None:
            self._prefixes.lost()

"""PrefixNews: what a replica's prefix cache holds, as far as the router has not been told."""

from itertools import islice
from typing import Final, NamedTuple, Protocol

MOST_NEWS: Final = 4_096
"""Hashes that one report tells of; what is left goes with the next."""

MOST_HELD: Final = 65_536
"""Hashes that a full report tells of; of a larger cache, those that will stay longest."""


class PrefixCache(Protocol):
    """What a replica asks of its engine; hashes are as in `router.ticket.Ticket.prefix`."""

    def prefix_events(self) -> tuple[list[int], list[int]]:
        """Return what can be found since the last call, and what no more; nothing is in both."""

    def held_prefixes(self, most: int) -> list[int]:
        """Return what can be found, at most so much; ``prefix_events`` begins anew.

        What stays longest comes first, and nothing before the block that it depends on.
        """


class Told(NamedTuple):
    """What a report says of it, see `router.report.Report`."""

    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    prefixes: tuple[int, ...] | None = None


class PrefixNews:
    """Collects news for the reports of one replica.

    What was collected counts as told, until its report turns out to be lost. To list all again
    holds up the engine, so that is not done for a router that cannot be reached: once a report has
    arrived there, all is told with the next.
    """

    def __init__(self, cache: PrefixCache) -> None:
        """Begin with nothing told; the first report is a full one.

        Args:
            cache: of the replica.
        """
        self._cache = cache
        self._left: dict[int, bool] = {}  # hash -> whether it can be found now
        self._reached = True
        self._owed = False

    @property
    def left(self) -> bool:
        """Whether there was more than the last report could tell."""
        return self._owed or bool(self._left)

    def collect(self, *, full: bool) -> Told:
        """Return what the next report is to say.

        Args:
            full: it tells all that the replica holds.
        """
        if not self._reached:
            return Told()
        if full or self._owed:
            self._owed = False
            self._left.clear()
            return Told(prefixes=tuple(self._cache.held_prefixes(MOST_HELD)))
        stored, removed = self._cache.prefix_events()
        self._left |= dict.fromkeys(stored, True) | dict.fromkeys(removed, False)
        now = dict(islice(self._left.items(), MOST_NEWS))
        for key in now:
            del self._left[key]
        return Told(
            tuple(key for key, there in now.items() if there),
            tuple(key for key, there in now.items() if not there),
        )

    def lost(self) -> None:
        """The last report did not arrive, as far as is known."""
        self._reached, self._owed = False, True

    def arrived(self) -> None:
        """The last report did arrive."""
        self._reached = True

"""Lives: the requests of an engine whose end has not been told."""

from collections.abc import Iterator

from engine.live import Live
from engine.start_limits import StartLimits


class Lives:
    """Unfinished requests by the scheduler's ids and by their callers' keys.

    Not thread-safe: whoever uses it serialises the calls.

    Attributes:
        by_id: all of them, in order of submission; not to be changed from outside.
    """

    def __init__(self) -> None:
        """Begin with nobody."""
        self.by_id: dict[int, Live] = {}
        self._ids: dict[str, int] = {}
        self._start_limits = StartLimits()

    def __len__(self) -> int:
        """How many there are."""
        return len(self.by_id)

    def __iter__(self) -> Iterator[Live]:
        """All of them, in order of submission."""
        return iter(self.by_id.values())

    def __contains__(self, key: object) -> bool:
        """Whether a caller's key is among them."""
        return key in self._ids

    def keys(self) -> tuple[str, ...]:
        """The callers' keys, in order of submission."""
        return tuple(self._ids)

    def id_of(self, key: str) -> int | None:
        """Return the id of a caller's key, None if there is none."""
        return self._ids.get(key)

    def add(self, live: Live, start_by: int | None) -> None:
        """Take in a request that has an id; ``start_by``: the last tick to start it at, if any."""
        self.by_id[live.id] = live
        self._ids[live.key] = live.id
        if start_by is not None:
            self._start_limits.add(live.id, start_by)

    def start(self, live: Live, now: float, cached: int) -> None:
        """Note that the first step computes something of a request: see :meth:`Live.start`."""
        live.start(now, cached)
        self._start_limits.discard(live.id)

    def pop_expired(self, tick: int) -> list[Live]:
        """Take out those that should have been started before ``tick``."""
        return [self.drop(id) for id in self._start_limits.pop_over(tick)]

    def drop(self, id: int) -> Live:
        """Take out a request."""
        live = self.by_id.pop(id)
        del self._ids[live.key]
        self._start_limits.discard(id)
        return live

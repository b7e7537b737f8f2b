"""Demand: what the router knows at one moment, and how it travels as Serve's metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Demand:
    """What the router knows at one moment.

    Attributes:
        at: wall-clock time of that moment, in seconds.
        replicas: those that serve; not the ones that start, leave or are lost.
        total_blocks: KV blocks of these replicas.
        free_blocks: of those, free and not promised to a grant or a replica's own queue; may be
            negative.
        seats: requests that these replicas compute at once at most; 0 if that is not known.
        queued: tickets that wait in the router.
        queued_blocks: blocks that they need to start.
        running: requests that have been placed and have not ended, running or not.
        oldest_wait_s: how long the ticket that waits longest has waited.
        idle_s: how long there has been no request at all; 0 while there is one.
        ttft_s: recent 90th percentile of the time to first token; None: no recent data.
    """

    at: float
    replicas: int
    total_blocks: int
    free_blocks: int
    seats: int
    queued: int
    queued_blocks: int
    running: int
    oldest_wait_s: float
    idle_s: float
    ttft_s: float | None

    @property
    def requests(self) -> int:
        """All requests there are."""
        return self.queued + self.running

    @property
    def load(self) -> float:
        """How many replicas all the work there is would fill: by blocks or by seats, the larger.

        Only replicas that serve show how much one holds: without any it is 0.
        """
        if self.replicas == 0 or self.total_blocks == 0:
            return 0.0
        blocks = (self.total_blocks - self.free_blocks + self.queued_blocks) / self.total_blocks
        seats = self.requests / self.seats if self.seats else 0.0
        return self.replicas * max(blocks, seats)


class Point(Protocol):
    """One value of a metric, as Serve keeps it."""

    @property
    def timestamp(self) -> float: ...
    @property
    def value(self) -> float: ...


RawMetrics: TypeAlias = Mapping[str, Mapping[Any, Sequence[Point]]]
"""Serve's: by name of the metric and by replica, oldest first."""

_WHOLE: Final = (
    "replicas",
    "total_blocks",
    "free_blocks",
    "seats",
    "queued",
    "queued_blocks",
    "running",
)
_SECONDS: Final = ("at", "oldest_wait_s", "idle_s")


def stats_of(demand: Demand) -> dict[str, float]:
    """Return what a replica's ``record_autoscaling_stats`` says: floats by name."""
    stats = {name: float(getattr(demand, name)) for name in (*_WHOLE, *_SECONDS)}
    if demand.ttft_s is not None:
        stats["ttft_s"] = float(demand.ttft_s)
    return stats


def newest_demand(metrics: RawMetrics | None) -> Demand | None:
    """Return the newest of the demands that replicas relay; None if there is none.

    Each replica relays what the router told it last. An average over time and replicas, which
    is what Serve makes of metrics, would mix moments that never were.
    """
    if not metrics:
        return None
    relayed = [_relayed(metrics, replica) for replica in metrics.get("at", {})]
    return max((one for one in relayed if one is not None), key=lambda one: one.at, default=None)


def _relayed(metrics: RawMetrics, replica: object) -> Demand | None:
    times = metrics["at"][replica]
    if not times:
        return None
    # The values of one demand were recorded together. An older one's may still be there under
    # a name that the newest does not have: no recent time to first token.
    stats = {
        name: series[replica][-1].value
        for name, series in metrics.items()
        if series.get(replica) and series[replica][-1].timestamp == times[-1].timestamp
    }
    if not stats.keys() >= {*_WHOLE, *_SECONDS}:
        return None
    fields: dict[str, Any] = {name: int(stats[name]) for name in _WHOLE}
    fields |= {name: stats[name] for name in _SECONDS}
    return Demand(**fields, ttft_s=stats.get("ttft_s"))

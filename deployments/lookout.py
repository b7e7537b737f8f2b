"""Lookout: what the autoscaler is to know, from what the router sees."""

from collections.abc import Callable

from deployments.autoscaling import Demand, TtftWindow
from deployments.metrics import Counts
from router.gauges import Gauges


def requests(gauges: Gauges) -> int:
    """Return how many requests there are, waiting ones and running ones.

    Those that an earlier router placed are among them: replicas have reported that they hold
    them.
    """
    return gauges.queued + sum(one.grants for one in gauges.replicas)


class Lookout:
    """Remembers what a moment's figures do not show: how long nobody asked, how long they waited.

    Args:
        clock: seconds, never going back.
        wall_clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._busy_at = clock()
        self._ttft = TtftWindow()

    def asked(self) -> None:
        """Somebody asks for a replica."""
        self._busy_at = self._clock()

    def counted(self, counts: Counts) -> None:
        """A gateway has handed over what it counted."""
        self._ttft.add(self._clock(), counts)

    def changed(self) -> None:
        """Replicas have come or gone: how long requests waited for the others says nothing."""
        self._ttft.clear()

    def look(self, gauges: Gauges) -> Demand:
        """Return the demand of this moment; to be called about once a second."""
        now = self._clock()
        if requests(gauges):
            self._busy_at = now
        serving = [one for one in gauges.replicas if not one.leaving]
        return Demand(
            at=self._wall_clock(),
            replicas=len(serving),
            total_blocks=sum(one.total_blocks for one in serving),
            free_blocks=sum(one.effective_free_blocks for one in serving),
            seats=sum(one.max_seqs for one in serving),
            queued=gauges.queued,
            queued_blocks=gauges.queued_blocks,
            running=requests(gauges) - gauges.queued,
            oldest_wait_s=gauges.oldest_wait_s,
            idle_s=now - self._busy_at,
            ttft_s=self._ttft.quantile(now),
        )

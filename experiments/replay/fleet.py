"""Fleet: what a server's metrics tell of its replicas while a load runs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from deployments.exposition import PREFIX
from experiments.replay.clock import Clock
from experiments.simulator.outcome import Sample

Labels: TypeAlias = tuple[tuple[str, str], ...]
Page: TypeAlias = Mapping[str, Mapping[Labels, float]]
"""Values by metric, without the prefix of its name, and labels."""

COUNTS: Final[Mapping[str, tuple[str, str]]] = {
    "placements": ("requests_placed_total", ""),
    "busy": ("admission_rejections_total", "busy"),
    "expired": ("request_expired_total", ""),
    "resumed": ("request_resumed_total", "lost"),
    "drained": ("request_resumed_total", "drained"),
    "lost_replicas": ("replicas_lost_total", ""),
    "preemptions": ("num_preemptions_total", ""),
    "admission_preemptions": ("num_admission_preemptions_total", ""),
    "gap_admissions": ("gap_admissions_total", ""),
    "recomputed_tokens": ("recomputed_tokens_total", ""),
    "restored_tokens": ("restored_tokens_total", ""),
    "queried_tokens": ("prefix_cache_queries_total", ""),
    "found_tokens": ("prefix_cache_hits_total", ""),
}
"""What a run calls it: the server's counter, and the value of its label if one of several."""

_GAUGES: Final = (
    "num_replicas",
    "num_requests_waiting",
    "num_requests_running",
    "oldest_wait_seconds",
    "kv_blocks",
    "kv_blocks_free",
)
_COUNTERS: Final = frozenset(counter for counter, _ in COUNTS.values())
_NAMES: Final = tuple(f"{PREFIX}{name}{{" for name in (*_GAUGES, *sorted(_COUNTERS)))
_PATIENCE: Final = aiohttp.ClientTimeout(total=5.0)


class Fleet:
    """Looks at ``/metrics`` once a period.

    Args:
        session: asks the server.
        url: of the server, ending with a slash.
        period_s: between two looks, in seconds.

    Attributes:
        samples: one for each look that succeeded.
        counts: how far each of `COUNTS` has risen since the first look. A counter that begins
            anew, with its process, has risen by what it shows then.
        replica_s: replica-seconds of all replicas that were there, from look to look.
        busy_s: replica-seconds of those that had running requests at a look.
    """

    def __init__(self, session: aiohttp.ClientSession, url: URL, period_s: float = 1.0) -> None:
        self.samples: list[Sample] = []
        self.counts: dict[str, float] = {}
        self.replica_s = 0.0
        self.busy_s = 0.0
        self._session = session
        self._url = url / "metrics"
        self._period_s = period_s
        self._seen: dict[tuple[str, Labels], float] = {}
        self._last: tuple[float, float, float] | None = None

    async def watch(self, clock: Clock) -> None:
        """Look once a period of the load's time, until this is cancelled."""
        at = 0.0
        while True:
            # A look may take longer than a period; none is made up for.
            at = max(at + self._period_s, clock.now())
            await clock.until(at)
            await self.look(clock)

    async def look(self, clock: Clock | None = None) -> bool:
        """Look once; False if the server shows no metrics as Tidegate does.

        Args:
            clock: of the load; None before it begins.
        """
        try:
            async with self._session.get(self._url, timeout=_PATIENCE) as answer:
                text = await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
            return False
        page = read(text)
        if "num_replicas" not in page:
            return False
        self._enter(page, 0.0 if clock is None else clock.now())
        return True

    def _enter(self, page: Page, now: float) -> None:
        states = _by_label(page, "num_replicas", "state")
        waiting = _by_label(page, "num_requests_waiting", "replica")
        in_router = waiting.pop("router", 0.0)
        serving = states.get("serving", 0.0)
        self.samples.append(
            Sample(
                at=now,
                wanted=int(serving + states.get("suspect", 0.0)),
                serving=int(serving),
                starting=0,  # no server tells
                queued=int(in_router),
                oldest_wait_s=_total(page, "oldest_wait_seconds"),
                waiting=int(sum(waiting.values())),
                running=int(_total(page, "num_requests_running")),
                free_blocks=int(_total(page, "kv_blocks_free")),
                total_blocks=int(_total(page, "kv_blocks")),
            )
        )
        busy = sum(1 for value in page.get("num_requests_running", {}).values() if value)
        self._pay(now, sum(states.values()), busy)
        self._count(page)

    def _pay(self, now: float, replicas: float, busy: float) -> None:
        if self._last is not None:
            before, were, were_busy = self._last
            self.replica_s += (now - before) * were
            self.busy_s += (now - before) * were_busy
        self._last = now, replicas, busy

    def _count(self, page: Page) -> None:
        first = not self.counts
        for count, (counter, only) in COUNTS.items():
            risen = self.counts.get(count, 0.0)
            for labels, value in page.get(counter, {}).items():
                if only and only not in dict(labels).values():
                    continue
                # A series that joins later belongs to a replica that began after the load.
                before = self._seen.get((counter, labels), value if first else 0.0)
                risen += value - before if value >= before else value
                self._seen[counter, labels] = value
            self.counts[count] = risen


def read(text: str) -> Page:
    """Return what is needed of a page in Prometheus' format; nothing of another page."""
    # A page is long and read while requests are timed: most of it is not parsed.
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    page: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    for name, labels, value in _samples("\n".join(lines) + "\n"):
        page[name][labels] = value
    return dict(page)


def _samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                yield name, tuple(sorted(sample.labels.items())), float(sample.value)
    except ValueError:
        return


def _total(page: Page, name: str) -> float:
    return sum(page.get(name, {}).values())


def _by_label(page: Page, name: str, label: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for labels, value in page.get(name, {}).items():
        found[dict(labels).get(label, "")] += value
    return found

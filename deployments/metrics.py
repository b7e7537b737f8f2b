"""Counters and histograms that add up over gateways, and the Prometheus page.

A scrape reaches one gateway, but the page is for the whole deployment: every gateway
counts on its own and hands what it counted to the router, which adds it up. The text
format is Prometheus' exposition format 0.0.4.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from deployments.messages import Vitals
from router.gauges import Gauges, ReplicaGauges

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "tidegate:"

Labels: TypeAlias = tuple[tuple[str, str], ...]
Series: TypeAlias = tuple[str, Labels]

_SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_LONG: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_WAIT: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_STATES: Final = ("serving", "leaving", "suspect")

HISTOGRAMS: Final[Mapping[str, tuple[Sequence[float], str]]] = {
    "time_to_first_token_seconds": (_WAIT, "From a request's arrival to its first token."),
    "inter_token_latency_seconds": (_SHORT, "Between two tokens of a request."),
    "e2e_request_latency_seconds": (_LONG, "From a request's arrival to its last token."),
    "request_queue_time_seconds": (_WAIT, "From a request's arrival to a replica's taking it."),
}
COUNTERS: Final[Mapping[str, str]] = {
    "request_success_total": "Requests that ended, by reason; abort: the client left.",
    "request_errors_total": "Requests that ended with an error.",
    "admission_rejections_total": "Requests turned away, by reason.",
    "request_resumed_total": "Requests moved to another replica: theirs was lost, or drained.",
    "replicas_lost_total": "Replicas that were given up, by reason.",
    "prompt_tokens_total": "Tokens of the prompts taken.",
    "generation_tokens_total": "Tokens generated.",
}


@dataclass(slots=True)
class Histogram:
    """Counts by bucket; the last is for what is above all bounds."""

    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class Counts:
    """What was counted; cheap to pickle and to add to another."""

    counters: dict[Series, int] = field(default_factory=dict)
    histograms: dict[Series, Histogram] = field(default_factory=dict)

    def add(self, name: str, amount: int = 1, labels: Labels = ()) -> None:
        """Raise a counter of ``COUNTERS``."""
        series = (name, labels)
        self.counters[series] = self.counters.get(series, 0) + amount

    def observe(self, name: str, value: float, labels: Labels = (), times: int = 1) -> None:
        """Enter a value, in seconds, into a histogram of ``HISTOGRAMS``."""
        bounds = HISTOGRAMS[name][0]
        histogram = self.histograms.get((name, labels))
        if histogram is None:
            histogram = self.histograms[(name, labels)] = Histogram([0] * (len(bounds) + 1))
        histogram.counts[bisect_left(bounds, value)] += times
        histogram.sum += value * times

    def merge(self, other: "Counts") -> None:
        """Add what another counted."""
        for series, amount in other.counters.items():
            self.counters[series] = self.counters.get(series, 0) + amount
        for series, theirs in other.histograms.items():
            ours = self.histograms.get(series)
            if ours is None:
                ours = self.histograms[series] = Histogram([0] * len(theirs.counts))
            ours.counts = [a + b for a, b in zip(ours.counts, theirs.counts, strict=True)]
            ours.sum += theirs.sum

    def take(self) -> "Counts":
        """Return what was counted since the last ``take``, and begin anew."""
        taken = Counts(self.counters, self.histograms)
        self.counters, self.histograms = {}, {}
        return taken

    def __bool__(self) -> bool:
        return bool(self.counters or self.histograms)


def priority_class(priority: int) -> Labels:
    """Return the label for a priority: its sign, so that there are three series and not many."""
    name = "normal" if priority == 0 else "high" if priority > 0 else "low"
    return (("priority_class", name),)


class Page:
    """Writes the exposition page of one model."""

    def __init__(self, model: str) -> None:
        self._model: Labels = (("model_name", model),)
        self._lines: list[str] = []

    def render(
        self,
        counts: Counts,
        gauges: Gauges,
        vitals: Mapping[str, Vitals],
        placed: Mapping[str, int],
    ) -> str:
        """Return the page.

        Args:
            counts: of all gateways.
            gauges: of the router.
            vitals: of each replica, by its name.
            placed: requests that the router sent to each replica.
        """
        self._gauges(gauges)
        self._replica_counter("requests_placed_total", "Requests sent to a replica.", placed)
        self._replica_counter(
            "num_preemptions_total",
            "Requests put back into a replica's queue: blocks were lacking, or an urgent one came.",
            {name: v.preemptions for name, v in vitals.items()},
        )
        self._replica_counter(
            "recomputed_tokens_total",
            "Tokens computed again after a preemption.",
            {name: v.recomputed_tokens for name, v in vitals.items()},
        )
        for name, text in COUNTERS.items():
            self._family(name, "counter", text)
            series = sorted((s[1], n) for s, n in counts.counters.items() if s[0] == name)
            for labels, amount in series or [((), 0)]:
                self._line(name, labels, amount)
        for name, (bounds, text) in HISTOGRAMS.items():
            self._family(name, "histogram", text)
            for (family, labels), histogram in sorted(
                counts.histograms.items(), key=lambda item: item[0]
            ):
                if family == name:
                    self._histogram(name, labels, bounds, histogram)
        return "\n".join(self._lines) + "\n"

    def _gauges(self, gauges: Gauges) -> None:
        replicas = gauges.replicas
        # The router's own queue is one more place where requests wait: a sum is the total.
        waiting = [("router", gauges.queued), *((r.replica, r.waiting) for r in replicas)]
        self._gauge("num_requests_waiting", "Requests that wait, by place.", waiting)
        running = [(r.replica, r.running) for r in replicas]
        self._gauge("num_requests_running", "Requests that a replica computes.", running)
        used = [
            (r.replica, round(1 - r.free_blocks / r.total_blocks, 6) if r.total_blocks else 0.0)
            for r in replicas
        ]
        self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", used)
        ages = [(r.replica, round(r.age_s, 3)) for r in replicas]
        self._gauge("replica_report_age_seconds", "Since a replica's last report.", ages)
        states = Counter(_state(one) for one in replicas)
        self._family("num_replicas", "gauge", "Replicas by state.")
        for state in _STATES:
            self._line("num_replicas", (("state", state),), states[state])
        self._gauge("oldest_wait_seconds", "Longest wait.", [("router", gauges.oldest_wait_s)])

    def _gauge(self, name: str, text: str, values: Iterable[tuple[str, float]]) -> None:
        self._family(name, "gauge", text)
        for replica, value in values:
            self._line(name, (("replica", replica),), value)

    def _replica_counter(self, name: str, text: str, values: Mapping[str, int]) -> None:
        self._family(name, "counter", text)
        for replica, value in values.items():
            self._line(name, (("replica", replica),), value)

    def _histogram(
        self, name: str, labels: Labels, bounds: Sequence[float], histogram: Histogram
    ) -> None:
        total = 0
        for bound, count in zip((*map(str, bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            self._line(f"{name}_bucket", (*labels, ("le", bound)), total)
        self._line(f"{name}_sum", labels, histogram.sum)
        self._line(f"{name}_count", labels, total)

    def _family(self, name: str, kind: str, text: str) -> None:
        self._lines.append(f"# HELP {PREFIX}{name} {text}")
        self._lines.append(f"# TYPE {PREFIX}{name} {kind}")

    def _line(self, name: str, labels: Labels, value: float) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in (*self._model, *labels))
        self._lines.append(f"{PREFIX}{name}{{{inside}}} {value}")


def _state(replica: ReplicaGauges) -> str:
    return "leaving" if replica.leaving else "suspect" if replica.suspect else "serving"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

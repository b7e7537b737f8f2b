"""Counters and histograms that add up over gateways.

A scrape reaches one gateway, but what it sees is the whole deployment: every gateway counts on
its own and hands what it counted to the router, which adds it up.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from deployments.messages import Vitals

Labels: TypeAlias = tuple[tuple[str, str], ...]
Series: TypeAlias = tuple[str, Labels]

_SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_LONG: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_WAIT: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

HISTOGRAMS: Final[Mapping[str, tuple[Sequence[float], str]]] = {
    "time_to_first_token_seconds": (_WAIT, "From a request's arrival to its first token."),
    "inter_token_latency_seconds": (_SHORT, "Between two tokens of a request."),
    "e2e_request_latency_seconds": (_LONG, "From a request's arrival to its last token."),
    "request_queue_time_seconds": (_WAIT, "From a request's arrival to the first step for it."),
}
COUNTERS: Final[Mapping[str, str]] = {
    "request_success_total": "Requests that ended, by reason; abort: the client left.",
    "request_errors_total": "Requests that ended with an error.",
    "admission_rejections_total": "Requests turned away, by reason.",
    "request_expired_total": "Requests given up at a time limit of theirs: first token or end.",
    "request_resumed_total": "Requests moved to another replica: theirs was lost, or drained.",
    "replicas_lost_total": "Replicas that were given up, by reason.",
    "prompt_tokens_total": "Tokens of the prompts taken.",
    "generation_tokens_total": "Tokens generated.",
    "tenant_tokens_total": "Tokens of prompts and answers, by tenant.",
}

CLASSES: Final = ("high", "normal", "low")

KNOWN: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "request_success_total": ("finished_reason", ("stop", "length", "abort")),
    "admission_rejections_total": ("reason", ("busy", "no_replica")),
    "request_expired_total": ("limit", ("first token", "end")),
    "request_resumed_total": ("reason", ("lost", "drained")),
    "replicas_lost_total": ("reason", ("dead", "unreachable", "silent", "stalled")),
    "tenant_tokens_total": ("tenant", ()),
    "request_queue_time_seconds": ("priority_class", CLASSES),
}
"""The label of a family and values that are shown from the start: what appears together with its
first event has no rate at that event."""

ALL_PREEMPTIONS: Final = "num_preemptions"
"""A counter of all replicas together, which does not fall when one of them is replaced."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket; the last is for what is above all bounds."""

    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class Counts:
    """What was counted; cheap to pickle and to add to another.

    ``served`` is the tokens generated for each tenant, by which tenants share fairly.
    """

    counters: dict[Series, int] = field(default_factory=dict)
    histograms: dict[Series, Histogram] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, amount: int = 1, labels: Labels = ()) -> None:
        """Raise a counter of ``COUNTERS``, or ``ALL_PREEMPTIONS``."""
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

    def preempted(self, before: Vitals, now: Vitals) -> None:
        """Count what a replica did between two reports of one life."""
        if now.preemptions != before.preemptions:
            self.add(ALL_PREEMPTIONS, now.preemptions - before.preemptions)

    def serve(self, tenant: str, tokens: int) -> None:
        """Count tokens that were generated for a tenant."""
        self.served[tenant] = self.served.get(tenant, 0) + tokens

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
        for tenant, tokens in other.served.items():
            self.serve(tenant, tokens)

    def take(self) -> "Counts":
        """Return what was counted since the last ``take``, and begin anew."""
        taken = Counts(self.counters, self.histograms, self.served)
        self.counters, self.histograms, self.served = {}, {}, {}
        return taken

    def __bool__(self) -> bool:
        return bool(self.counters or self.histograms or self.served)


def priority_class(priority: int) -> Labels:
    """Return the label for a priority: its sign, so that there are three series and not many."""
    name = "normal" if priority == 0 else "high" if priority > 0 else "low"
    return (("priority_class", name),)

"""The page that Prometheus reads, in its exposition format 0.0.4."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deployments.messages import Vitals
from deployments.metrics import (
    ALL_PREEMPTIONS,
    COUNTERS,
    HISTOGRAMS,
    KNOWN,
    Counts,
    Histogram,
    Labels,
)
from router.gauges import Gauges, ReplicaGauges

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "tidegate:"
VLLM_PREFIX: Final = "vllm:"

_STATES: Final = ("serving", "leaving", "suspect")

BY_TENANT: Final = frozenset({"tenant_tokens_total"})
"""What names tenants."""

VLLM_NAMES: Final = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "request_success_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
    }
)
"""What vLLM calls the same."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: what stands behind the family's name, labels without the model, and the value."""

    suffix: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """The lines of one metric."""

    name: str
    kind: str
    text: str
    samples: Sequence[Sample]


class Page:
    """Writes the page of one model.

    Args:
        model: its name, a label of every line.
        vllm: say again under vLLM's names what vLLM has too.
        tenants: name the tenants.
    """

    def __init__(self, model: str, *, vllm: bool = False, tenants: bool = True) -> None:
        self._model: Labels = (("model_name", model),)
        self._vllm = vllm
        self._tenants = tenants

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
        families = [
            *_gauges(gauges),
            *_of_replicas(vitals, placed),
            *_counters(counts),
            *_histograms(counts),
        ]
        if not self._tenants:
            families = [family for family in families if family.name not in BY_TENANT]
        lines = [line for family in families for line in self._lines(PREFIX, family)]
        if self._vllm:
            for family in families:
                if family.name in VLLM_NAMES:
                    lines += self._lines(VLLM_PREFIX, _as_vllm(family, counts))
        return "\n".join(lines) + "\n"

    def _lines(self, prefix: str, family: Family) -> Iterator[str]:
        name = prefix + family.name
        yield f"# HELP {name} {family.text}"
        yield f"# TYPE {name} {family.kind}"
        for sample in family.samples:
            labels = (*self._model, *sample.labels)
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            yield f"{name}{sample.suffix}{{{inside}}} {sample.value}"


def state(replica: ReplicaGauges) -> str:
    """Return a replica's state in one word."""
    return "leaving" if replica.leaving else "suspect" if replica.suspect else "serving"


def _gauges(gauges: Gauges) -> Iterator[Family]:
    replicas = gauges.replicas
    # The router's own queue is one more place where requests wait: a sum is the total.
    waiting = [("router", gauges.queued), *((r.replica, r.waiting) for r in replicas)]
    yield _by_replica("num_requests_waiting", "Requests that wait, by place.", waiting)
    running = [(r.replica, r.running) for r in replicas]
    yield _by_replica("num_requests_running", "Requests that a replica computes.", running)
    used = [
        (r.replica, round(1 - r.free_blocks / r.total_blocks, 6) if r.total_blocks else 0.0)
        for r in replicas
    ]
    yield _by_replica("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", used)
    blocks = [(r.replica, r.total_blocks) for r in replicas]
    yield _by_replica("kv_blocks", "Blocks of a replica's KV cache.", blocks)
    free = [(r.replica, r.free_blocks) for r in replicas]
    yield _by_replica("kv_blocks_free", "Those of them that are free.", free)
    ages = [(r.replica, round(r.age_s, 3)) for r in replicas]
    yield _by_replica("replica_report_age_seconds", "Since a replica's last report.", ages)
    states = Counter(state(one) for one in replicas)
    samples = [Sample("", (("state", name),), states[name]) for name in _STATES]
    yield Family("num_replicas", "gauge", "Replicas by state.", samples)
    oldest = [("router", gauges.oldest_wait_s)]
    yield _by_replica("oldest_wait_seconds", "Longest wait.", oldest)
    text = "Requests placed by prefix_affinity, by where most of the prompt was held."
    samples = [Sample("", (("held", where),), count) for where, count in gauges.by_prefix]
    yield Family("requests_placed_by_prefix_total", "counter", text, samples)


def _of_replicas(vitals: Mapping[str, Vitals], placed: Mapping[str, int]) -> Iterator[Family]:
    for name, text, values in (
        ("requests_placed_total", "Requests sent to a replica.", placed),
        (
            "num_preemptions_total",
            "Requests put back into a replica's queue: blocks were lacking, or an urgent one came.",
            {name: one.preemptions for name, one in vitals.items()},
        ),
        (
            "num_admission_preemptions_total",
            "Those of them that made way for an urgent one.",
            {name: one.admission_preemptions for name, one in vitals.items()},
        ),
        (
            "recomputed_tokens_total",
            "Tokens computed again after a preemption.",
            {name: one.recomputed_tokens for name, one in vitals.items()},
        ),
        (
            "restored_tokens_total",
            "Tokens that came back from host memory after a preemption.",
            {name: one.restored_tokens for name, one in vitals.items()},
        ),
        (
            "gap_admissions_total",
            "Requests that a replica let in before larger ones that rank before them.",
            {name: one.gap_admissions for name, one in vitals.items()},
        ),
        (
            "prefix_cache_queries_total",
            "Tokens of prompts that were looked for in a replica's prefix cache.",
            {name: one.prefix_queries for name, one in vitals.items()},
        ),
        (
            "prefix_cache_hits_total",
            "Those of them that were there, and were not computed again.",
            {name: one.prefix_hits for name, one in vitals.items()},
        ),
    ):
        yield _by_replica(name, text, values.items(), "counter")


def _by_replica(
    name: str, text: str, values: Iterable[tuple[str, float]], kind: str = "gauge"
) -> Family:
    samples = [Sample("", (("replica", replica),), value) for replica, value in values]
    return Family(name, kind, text, samples)


def _counters(counts: Counts) -> Iterator[Family]:
    for name, text in COUNTERS.items():
        series: dict[Labels, int] = dict.fromkeys(_known(name), 0)
        series |= {labels: n for (family, labels), n in counts.counters.items() if family == name}
        samples = [Sample("", labels, amount) for labels, amount in sorted(series.items())]
        yield Family(name, "counter", text, samples)


def _histograms(counts: Counts) -> Iterator[Family]:
    for name, (bounds, text) in HISTOGRAMS.items():
        none = Histogram([0] * (len(bounds) + 1))
        series = dict.fromkeys(_known(name), none)
        series |= {labels: h for (family, labels), h in counts.histograms.items() if family == name}
        samples = [
            sample
            for labels, histogram in sorted(series.items(), key=lambda item: item[0])
            for sample in _buckets(labels, bounds, histogram)
        ]
        yield Family(name, "histogram", text, samples)


def _known(name: str) -> Iterator[Labels]:
    if name not in KNOWN:
        yield ()
        return
    label, values = KNOWN[name]
    for value in values:
        yield ((label, value),)


def _buckets(labels: Labels, bounds: Sequence[float], histogram: Histogram) -> Iterator[Sample]:
    total = 0
    for bound, count in zip((*map(str, bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        yield Sample("_bucket", (*labels, ("le", bound)), total)
    yield Sample("_sum", labels, histogram.sum)
    yield Sample("_count", labels, total)


def _as_vllm(family: Family, counts: Counts) -> Family:
    """Give a family vLLM's labels: an engine is what a replica is here, priorities have none."""
    if family.name == "num_preemptions_total":
        amount = counts.counters.get((ALL_PREEMPTIONS, ()), 0)
        return Family(family.name, family.kind, family.text, [Sample("", (), amount)])
    sums: dict[tuple[str, Labels], float] = {}
    for sample in family.samples:
        labels = tuple(
            ("engine" if key == "replica" else key, text)
            for key, text in sample.labels
            if key != "priority_class"
        )
        at = (sample.suffix, labels)
        sums[at] = sums.get(at, 0) + sample.value
    samples = [Sample(suffix, labels, value) for (suffix, labels), value in sums.items()]
    return Family(family.name, family.kind, family.text, samples)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

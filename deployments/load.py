"""What an operator wants to see at a glance, as plain data for JSON: ``GET /load``."""

from collections.abc import Mapping
from typing import Any

from deployments.exposition import state
from deployments.messages import Vitals
from deployments.metrics import ALL_PREEMPTIONS, HISTOGRAMS, Counts
from router.gauges import Gauges, ReplicaGauges

_TTFT = "time_to_first_token_seconds"
_BETWEEN = "inter_token_latency_seconds"


def snapshot(
    model: str,
    gauges: Gauges,
    vitals: Mapping[str, Vitals],
    placed: Mapping[str, int],
    counts: Counts,
) -> dict[str, Any]:
    """Return the deployment as it is now.

    Durations are in seconds. What is under ``totals`` and ``ttft`` is counted since the router
    started; what happened in a span of time is the difference of two snapshots.

    Args:
        model: the model's name.
        gauges: of the router.
        vitals: of each replica, by its name.
        placed: requests that the router sent to each replica.
        counts: of all gateways.
    """
    return {
        "model": model,
        "queue": {
            "waiting": gauges.queued,
            "limit": gauges.max_queued,
            "oldest_s": round(gauges.oldest_wait_s, 3),
            "blocks": gauges.queued_blocks,
            "settling": gauges.settling,
            "by_priority": [
                {
                    "priority": one.priority,
                    "waiting": one.queued,
                    "oldest_s": round(one.oldest_wait_s, 3),
                }
                for one in gauges.by_priority
            ],
        },
        "tenants": [
            {
                "tenant": one.tenant,
                "share": round(one.share, 4),
                "waiting": one.queued,
                "in_flight": one.in_flight,
                "max_in_flight": one.max_in_flight,
                "tokens": one.tokens_total,
            }
            for one in gauges.by_tenant
        ],
        "replicas": [
            _replica(one, vitals.get(one.replica), placed.get(one.replica, 0))
            for one in gauges.replicas
        ],
        "totals": _totals(counts),
        "ttft": {"bounds": list(HISTOGRAMS[_TTFT][0]), "counts": _buckets(counts, _TTFT)},
    }


def seen_by(tenant: str, load: dict[str, Any]) -> dict[str, Any]:
    """Return what a tenant may see of a snapshot: of the tenants, itself alone.

    Args:
        tenant: whose key asks; empty for who is none of them, and may see all.
        load: of the deployment.
    """
    if not tenant:
        return load
    return {**load, "tenants": [one for one in load["tenants"] if one["tenant"] == tenant]}


def _replica(gauges: ReplicaGauges, vitals: Vitals | None, placed: int) -> dict[str, Any]:
    return {
        "replica": gauges.replica,
        "state": state(gauges),
        "total_blocks": gauges.total_blocks,
        "free_blocks": gauges.free_blocks,
        "running": gauges.running,
        "max_running": gauges.max_seqs,
        "waiting": gauges.waiting,
        "report_age_s": round(gauges.age_s, 3),
        "placed": placed,
        "preemptions": 0 if vitals is None else vitals.preemptions,
        "recomputed_tokens": 0 if vitals is None else vitals.recomputed_tokens,
    }


def _totals(counts: Counts) -> dict[str, int]:
    def total(name: str) -> int:
        return sum(amount for (family, _), amount in counts.counters.items() if family == name)

    return {
        "ended": total("request_success_total"),
        "errors": total("request_errors_total"),
        "refused": total("admission_rejections_total"),
        "resumed": total("request_resumed_total"),
        "replicas_lost": total("replicas_lost_total"),
        "preemptions": total(ALL_PREEMPTIONS),
        "prompt_tokens": total("prompt_tokens_total"),
        # As they came: the counter of generated tokens may lag behind.
        "generated_tokens": sum(_buckets(counts, _TTFT)) + sum(_buckets(counts, _BETWEEN)),
    }


def _buckets(counts: Counts, name: str) -> list[int]:
    """Return a histogram's counts, all labels together."""
    total = [0] * (len(HISTOGRAMS[name][0]) + 1)
    for (family, _), histogram in counts.histograms.items():
        if family == name:
            total = [a + b for a, b in zip(total, histogram.counts, strict=True)]
    return total

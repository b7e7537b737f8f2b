"""Gauges: a snapshot of the router for metrics, health and autoscaling."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from router.account import Account
from router.queue import Entry
from router.tenants import Tenants


@dataclass(frozen=True, slots=True)
class ReplicaGauges:
    """One replica as the router sees it.

    Attributes:
        replica: its name.
        age_s: seconds since its newest report came.
        suspect: no report for `RouterConfig.suspect_after_s`, or unreachable. Placement goes on
            from the ledger, but tries it last.
        open: whether it may get anything (not leaving, no QueueFull since its last report,
            queue not full).
        total_blocks, free_blocks, running, max_seqs, waiting: as it reported.
        effective_free_blocks: free blocks less its own queue and charges; may be negative.
        charged: grants that no report counts yet.
        grants: grants that live.
        leaving: it takes nothing new, what it has goes on.
        unreachable: somebody could not reach it, and it has not reported since.
    """

    replica: str
    age_s: float
    suspect: bool
    open: bool
    total_blocks: int
    free_blocks: int
    effective_free_blocks: int
    running: int
    max_seqs: int
    waiting: int
    charged: int
    grants: int
    leaving: bool = False
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class PriorityGauges:
    """Those of one priority that wait in the router.

    Attributes:
        priority: theirs.
        queued: how many.
        oldest_wait_s: how long the one that waits longest has waited.
    """

    priority: int
    queued: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True)
class TenantGauges:
    """One tenant's part of the work.

    Attributes:
        tenant: its name.
        weight: of its share.
        share: of the work that is due to it among the tenants that have any now, 0 to 1.
        queued: tickets that wait in the router.
        in_flight: requests that were let in and have not ended; several tickets may be one.
        max_in_flight: how many may be, None if any number.
        tokens_total: tokens of its prompts and answers since the router's start.
        tokens_per_minute: how many it may use, None if any number.
    """

    tenant: str
    weight: float
    share: float
    queued: int
    in_flight: int
    max_in_flight: int | None
    tokens_total: int
    tokens_per_minute: int | None


@dataclass(frozen=True, slots=True)
class Gauges:
    """The router.

    Attributes:
        queued: tickets that wait in the router.
        max_queued: how many may.
        oldest_wait_s: how long the one that waits longest has waited since its first acquire.
        expecting: replicas that are meant to be there.
        placed_total, bounced_total, busy_total: placements, placements that came back with
            QueueFull, and Busy answers since the start.
        replicas: in the order in which they joined.
        queued_blocks: blocks that those who wait in the router need now.
        settling: nothing is placed yet, since the router has just started.
        by_priority: of those that wait, the highest priority first.
        by_tenant: in the order of the key file; empty without one.
        expired_total: tickets whose time to start had passed, since the router's start.
        by_prefix: tickets that were placed, by `router.prefix_match.Fate`, of those that say what
            their prompts begin with.
    """

    queued: int
    max_queued: int
    oldest_wait_s: float
    expecting: int
    placed_total: int
    bounced_total: int
    busy_total: int
    replicas: tuple[ReplicaGauges, ...]
    queued_blocks: int = 0
    settling: bool = False
    by_priority: tuple[PriorityGauges, ...] = ()
    by_tenant: tuple[TenantGauges, ...] = ()
    expired_total: int = 0
    by_prefix: tuple[tuple[str, int], ...] = ()


def replica_gauges(account: Account, now: float) -> ReplicaGauges:
    """Read an account at ``now``, in seconds of the router's clock."""
    figures = account.figures
    return ReplicaGauges(
        replica=figures.replica,
        age_s=now - account.reported_at,
        suspect=account.suspect,
        open=account.open,
        total_blocks=figures.total_blocks,
        free_blocks=figures.free_blocks,
        effective_free_blocks=account.free_blocks,
        running=figures.running,
        max_seqs=figures.max_seqs,
        waiting=figures.waiting,
        charged=len(account.charged),
        grants=account.grants,
        leaving=figures.leaving,
        unreachable=account.unreachable,
    )


def priority_gauges(waiting: Iterable[Entry], now: float) -> tuple[PriorityGauges, ...]:
    """Count those that wait, by priority."""
    since: dict[int, list[float]] = {}
    for entry in waiting:
        since.setdefault(entry.ticket.priority, []).append(entry.since)
    return tuple(
        PriorityGauges(priority, len(times), now - min(times))
        for priority, times in sorted(since.items(), reverse=True)
    )


def tenant_gauges(tenants: Tenants, waiting: Iterable[Entry]) -> tuple[TenantGauges, ...]:
    """Read each tenant's part; O(tenants + queue)."""
    queued = Counter(entry.ticket.tenant for entry in waiting)
    figures = tenants.figures()
    weights = sum(terms.weight for terms, in_flight, _ in figures if in_flight)
    return tuple(
        TenantGauges(
            tenant=terms.name,
            weight=terms.weight,
            share=terms.weight / weights if in_flight else 0.0,
            queued=queued[terms.name],
            in_flight=in_flight,
            max_in_flight=terms.max_in_flight,
            tokens_total=tokens,
            tokens_per_minute=terms.tokens_per_minute,
        )
        for terms, in_flight, tokens in figures
    )

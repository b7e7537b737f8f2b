"""A fleet in which replicas bring blocks, and a scaler that decides about it every second."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from deployments.autoscaling import Demand, Scaler, State

BLOCKS = 100
SEATS = 20
REQUEST_BLOCKS = 10
FIRST_TOKEN_S = 0.2

SCALER = Scaler(
    policy="blocks",
    target_utilization=0.8,
    target_wait_s=1.0,
    target_ttft_s=2.0,
    min_replicas=1,
    max_replicas=8,
    scale_up_cooldown_s=10.0,
    scale_down_cooldown_s=60.0,
    scale_to_zero_s=300.0,
)

QUIET = Demand(
    at=0.0,
    replicas=1,
    total_blocks=BLOCKS,
    free_blocks=BLOCKS,
    seats=SEATS,
    queued=0,
    queued_blocks=0,
    running=0,
    oldest_wait_s=0.0,
    idle_s=0.0,
    ttft_s=None,
)


def with_load(load: float, replicas: int, **others: float) -> Demand:
    """What the router sees when work for ``load`` replicas is there; what fits, runs."""
    work = round(load * BLOCKS)
    placed = min(work, replicas * BLOCKS)
    return replace(
        QUIET,
        replicas=replicas,
        total_blocks=replicas * BLOCKS,
        free_blocks=replicas * BLOCKS - placed,
        seats=replicas * SEATS,
        queued=-(-(work - placed) // REQUEST_BLOCKS),
        queued_blocks=work - placed,
        running=-(-placed // REQUEST_BLOCKS),
        **others,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class Change:
    """The target became ``after``."""

    at: float
    before: int
    after: int


def run(scaler: Scaler, loads: Iterable[float], target: int = 1, start_s: int = 20) -> list[Change]:
    """Let the work of each second meet the fleet; replicas serve ``start_s`` after they are asked.

    Work that finds no room waits, and makes those who wait wait longer.
    """
    state: State | None = None
    changes: list[Change] = []
    ready = [0.0] * target
    idle_since: float | None = None
    waiting_since: float | None = None
    for second, load in enumerate(loads):
        now = float(second)
        demand = with_load(load, sum(at <= now for at in ready))
        idle_since = (now if idle_since is None else idle_since) if not demand.requests else None
        if not demand.queued:
            waiting_since = None
        elif waiting_since is None:
            waiting_since = now
        wait_s = 0.0 if waiting_since is None else now - waiting_since
        demand = replace(
            demand,
            at=now,
            oldest_wait_s=wait_s,
            idle_s=0.0 if idle_since is None else now - idle_since,
            ttft_s=FIRST_TOKEN_S + wait_s if demand.running else None,
        )
        wanted, state = scaler.decide(demand, len(ready), now, state)
        if wanted != len(ready):
            changes.append(Change(now, len(ready), wanted))
            ready = [*ready[:wanted], *[now + start_s] * (wanted - len(ready))]
    return changes

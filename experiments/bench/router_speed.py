"""Placements a second of one RouterCore, in one process and without Ray."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random

from experiments.bench.table import Row
from router.core import RouterConfig, RouterCore
from router.report import Report
from router.ticket import Placement, Ticket

BLOCKS, SEATS, NEED = 4096, 64, 16


def measure(replicas: Sequence[int], placements: int) -> Iterator[Row]:
    """Yield placements/s with so many replicas; every ticket is acquired and released."""
    for count in replicas:
        note = f"acquire + release, {placements:,} tickets"
        yield Row(f"router, {count} replicas", _rate(count, placements), "placements/s", note)


def _rate(replicas: int, placements: int) -> float:
    core = RouterCore(RouterConfig(), time.monotonic, Random(0))
    for i in range(replicas):
        core.report(
            Report(
                replica=f"replica-{i}",
                seq=1,
                total_blocks=BLOCKS,
                free_blocks=BLOCKS,
                running=0,
                max_seqs=SEATS,
                waiting=0,
                waiting_blocks=0,
                max_waiting=256,
                held=(),
            )
        )
    tickets = [Ticket(f"t{i}", i % 3, i, NEED, 2 * NEED) for i in range(placements)]
    live: deque[str] = deque()
    placed = 0
    begin = time.perf_counter()
    for ticket in tickets:
        placed += sum(isinstance(d, Placement) for d in core.acquire(ticket))
        live.append(ticket.id)
        if len(live) > replicas * SEATS // 2:
            core.release(live.popleft())
    seconds = time.perf_counter() - begin
    return placed / seconds

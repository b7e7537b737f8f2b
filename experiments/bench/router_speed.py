"""Placements a second of CPU time of one RouterCore, in one process and without Ray."""

import pickle
import time
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from experiments.bench.table import Row
from router.core import RouterConfig, RouterCore
from router.policy import MostFreeBlocks, PlacementPolicy
from router.prefix_affinity import PrefixAffinity
from router.report import Report
from router.ticket import Placement, Ticket

BLOCKS, SEATS, NEED = 4096, 64, 16
CHATS, COMMON, OWN, NEW = 40, 8, 28, 4
"""Conversations that each replica holds, the hashes that all of them share, those that are a
conversation's own, and those that its next turn adds."""

_REPEATS: Final = 3


def measure(replicas: Sequence[int], placements: int) -> Iterator[Row]:
    """Yield placements/s with so many replicas; every ticket is acquired and released.

    By prefix, each ticket is the next turn of a conversation that some replica holds; and all
    replicas hold what it begins with.
    """
    for by_prefix in (False, True):
        name = "router by prefix" if by_prefix else "router"
        first: float | None = None
        for count in replicas:
            rate = max(_rate(count, placements, by_prefix) for _ in range(_REPEATS))
            first = first or rate
            note = f"acquire + release, in CPU time; each costs x{first / rate:.2f}"
            yield Row(f"{name}, {count} replicas", rate, "placements/s", note)


def _rate(replicas: int, placements: int, by_prefix: bool) -> float:
    placement: PlacementPolicy = PrefixAffinity() if by_prefix else MostFreeBlocks()
    core = RouterCore(RouterConfig(), time.monotonic, Random(0), placement)
    rng = Random(1)
    common = tuple(rng.getrandbits(64) for _ in range(COMMON))
    chats = []
    for i in range(replicas):
        own = [tuple(rng.getrandbits(64) for _ in range(OWN + NEW)) for _ in range(CHATS)]
        held = (*common, *(key for chat in own for key in chat[:OWN])) if by_prefix else None
        core.report(_report(i, held))
        chats += [common + chat if by_prefix else () for chat in own]
    # As they arrive: what the router has of a ticket is new, and not some old object's.
    tickets = [
        pickle.dumps(Ticket(f"t{i}", i % 3, i, NEED, 2 * NEED, prefix=rng.choice(chats)))
        for i in range(placements)
    ]
    live: deque[str] = deque()
    placed, seconds = 0, 0.0
    for message in tickets:
        ticket = pickle.loads(message)
        begin = time.process_time()
        placed += sum(isinstance(d, Placement) for d in core.acquire(ticket))
        live.append(ticket.id)
        if len(live) > min(replicas * SEATS // 2, placements // 4):
            core.release(live.popleft())
        seconds += time.process_time() - begin
    return placed / seconds


def _report(number: int, held: tuple[int, ...] | None) -> Report:
    return Report(
        replica=f"replica-{number}",
        seq=1,
        total_blocks=BLOCKS,
        free_blocks=BLOCKS,
        running=0,
        max_seqs=SEATS,
        waiting=0,
        waiting_blocks=0,
        max_waiting=256,
        held=(),
        prefixes=held,
    )

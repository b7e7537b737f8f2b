"""Replicas without engines: they hold blocks, keep a queue, and report as real ones do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from router.core import RouterConfig, RouterCore
from router.policy import PlacementPolicy
from router.report import Report
from router.ticket import Decision, Placement, Ticket


@dataclass
class FakeClock:
    """Seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeReplica:
    """A replica whose requests hold a fixed number of blocks until they are ended."""

    name: str
    total: int = 100
    max_seqs: int = 64
    max_waiting: int = 64
    leaving: bool = False
    kind: str = ""
    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    seq: int = 0
    admitted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    prefixes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    cached: dict[int, None] = field(default_factory=dict)
    news: dict[int, bool] = field(default_factory=dict)

    def submit(self, ticket_id: str, blocks: int, prefix: tuple[int, ...] = ()) -> bool:
        """Take a request; False is QueueFull."""
        if len(self.waiting) >= self.max_waiting:
            return False
        self.waiting[ticket_id] = blocks
        self.prefixes[ticket_id] = prefix
        self.admitted.append(ticket_id)
        return True

    def step(self) -> None:
        """Give seats and blocks to those who wait, in order, until one does not fit."""
        for ticket_id, blocks in list(self.waiting.items()):
            if len(self.running) >= self.max_seqs or blocks > self.free:
                break
            self.running[ticket_id] = self.waiting.pop(ticket_id)
            self.store(self.prefixes.get(ticket_id, ()))

    def store(self, keys: Iterable[int]) -> None:
        """Keep blocks for their content; they take no room here."""
        self.cached |= dict.fromkeys(keys)
        self.news |= dict.fromkeys(keys, True)

    def evict(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.cached.pop(key, None)
            self.news[key] = False

    def end(self, ticket_id: str) -> None:
        """A request finished or was aborted; nothing happens if it is not here."""
        here = self.running.pop(ticket_id, None) or self.waiting.pop(ticket_id, None)
        if here is not None:
            self.ended.append(ticket_id)

    @property
    def free(self) -> int:
        return self.total - sum(self.running.values())

    @property
    def held(self) -> tuple[str, ...]:
        return (*self.running, *self.waiting)

    def report(self, *, full: bool = False) -> Report:
        self.seq += 1
        full = full or self.seq == 1
        report = Report(
            replica=self.name,
            seq=self.seq,
            total_blocks=self.total,
            free_blocks=self.free,
            running=len(self.running),
            max_seqs=self.max_seqs,
            waiting=len(self.waiting),
            waiting_blocks=sum(self.waiting.values()),
            max_waiting=self.max_waiting,
            admitted=tuple(self.admitted),
            ended=tuple(self.ended),
            held=self.held if full else None,
            kind=self.kind,
            leaving=self.leaving,
            stored=tuple(key for key, is_there in self.news.items() if is_there),
            removed=tuple(key for key, is_there in self.news.items() if not is_there),
            prefixes=tuple(self.cached) if full else None,
        )
        self.news.clear()
        self.admitted.clear()
        self.ended.clear()
        return report


def ticket(
    ticket_id: str,
    blocks: int = 5,
    *,
    most: int | None = None,
    priority: int = 0,
    arrival: int = 0,
    again: bool = False,
    kind: str = "",
) -> Ticket:
    return Ticket(ticket_id, priority, arrival, blocks, most or blocks, again, kind)


def make_core(
    *replicas: FakeReplica,
    config: RouterConfig | None = None,
    clock: FakeClock | None = None,
    placement: PlacementPolicy | None = None,
    seed: int = 0,
) -> RouterCore:
    """A core that the replicas have joined."""
    core = RouterCore(config or RouterConfig(), clock or FakeClock(), Random(seed), placement)
    for replica in replicas:
        core.report(replica.report())
    return core


def where(decisions: list[Decision]) -> dict[str, str]:
    """Ticket to replica; fails on a refusal."""
    placements: dict[str, str] = {}
    for decision in decisions:
        assert isinstance(decision, Placement), decision
        placements[decision.ticket] = decision.replica
    return placements


def run(core: RouterCore, replica: FakeReplica, name: str, blocks: int, priority: int = 0) -> None:
    """Acquire a ticket that goes to the replica, run it there, and let the router know."""
    placed = where(core.acquire(ticket(name, blocks, priority=priority)))
    assert placed == {name: replica.name}
    assert replica.submit(name, blocks)
    replica.step()
    core.report(replica.report())


def suspects(core: RouterCore) -> set[str]:
    """Replicas that are tried last."""
    return {r.replica for r in core.gauges().replicas if r.suspect}


def free_blocks(core: RouterCore) -> dict[str, int]:
    """Effective free blocks of each replica."""
    return {r.replica: r.effective_free_blocks for r in core.gauges().replicas}


def grants(core: RouterCore) -> dict[str, int]:
    """Grants that live on each replica."""
    return {r.replica: r.grants for r in core.gauges().replicas}


def pair() -> dict[str, FakeReplica]:
    """Two equal replicas by name."""
    return {name: FakeReplica(name) for name in ("a", "b")}


def fill(core: RouterCore, count: int = 100, blocks: int = 50) -> list[str]:
    """Acquire until one waits; return the ids that were placed."""
    placed: list[str] = []
    for i in range(count):
        if not core.acquire(ticket(f"fill{i}", blocks)):
            core.release(f"fill{i}")
            return placed
        placed.append(f"fill{i}")
    raise AssertionError("never full")

"""Tenants take turns within a priority, and nothing else about the order changes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.rank import SchedPolicy, rank_of
from router.fair_queue import FairQueue
from router.queue import Entry, TicketQueue
from tests.router.fake_cluster import ticket

AGING_MS = 1_000
WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5}


def entry_of(
    name: str, tenant: str, priority: int, arrival: int, serial: int, policy: SchedPolicy
) -> Entry:
    one = replace(ticket(name, priority=priority, arrival=arrival), tenant=tenant)
    return Entry(one, rank_of(policy, AGING_MS, priority, arrival, serial), 0.0)


_Puts = st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.integers(0, 5_000))


class FairMachine(RuleBasedStateMachine):
    """The queue against a list, which is looked through anew each time."""

    policy = SchedPolicy.PRIORITY

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(self.policy, WEIGHTS)
        self.entries: list[Entry] = []
        self.virtual: dict[tuple[str, int], float] = {}
        self.last: dict[int, str] = {}
        self.count = 0

    @rule(puts=st.lists(_Puts, min_size=1, max_size=3))
    def put(self, puts: list[tuple[str, int, int]]) -> None:
        for tenant, priority, arrival in puts:
            self.count += 1
            name = f"t{self.count}"
            one = entry_of(name, tenant, priority, arrival, self.count, self.policy)
            level = self.level(priority)
            active = self.tenants(level)
            if tenant not in active:
                others = active or {self.last[level] for _ in "1" if level in self.last}
                least = min((self.served(other, level) for other in others), default=0.0)
                self.virtual[tenant, level] = max(self.served(tenant, level), least)
            self.entries.append(one)
            self.queue.put(one)

    def tenants(self, level: int) -> set[str]:
        """Those who wait there."""
        there = [one for one in self.entries if self.level(one.ticket.priority) == level]
        return {one.ticket.tenant for one in there}

    def served(self, tenant: str, level: int) -> float:
        return self.virtual.get((tenant, level), 0.0)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.entries)))

    def leave(self, entry: Entry) -> None:
        self.entries.remove(entry)
        assert self.queue.take(entry.ticket.id) is entry
        assert self.queue.take(entry.ticket.id) is None
        level = self.level(entry.ticket.priority)
        if entry.ticket.tenant not in self.tenants(level):
            self.last[level] = entry.ticket.tenant

    @precondition(lambda self: self.entries)
    @rule(cost=st.integers(0, 300))
    def serve_the_head(self, cost: int) -> None:
        head = self.queue.head()
        assert head is not None
        self.leave(head)
        self.charge(head.ticket.tenant, head.ticket.priority, cost)

    @rule(tenant=st.sampled_from("abc"), priority=st.integers(-2, 2), tokens=st.integers(-50, 300))
    def charge(self, tenant: str, priority: int, tokens: int) -> None:
        self.queue.charge(tenant, priority, tokens)
        level = self.level(priority)
        self.virtual[tenant, level] = self.served(tenant, level) + tokens / WEIGHTS[tenant]

    def level(self, priority: int) -> int:
        return priority if self.policy is SchedPolicy.PRIORITY else 0

    def same(self, one: Entry, other: Entry) -> bool:
        return self.level(one.ticket.priority) == self.level(other.ticket.priority)

    def first(self) -> Entry | None:
        if not self.entries:
            return None
        best = min(self.entries, key=lambda one: one.rank)
        others = [one for one in self.entries if not self.same(one, best)]
        mine = [one for one in self.entries if self.same(one, best)]
        ahead = [one for one in mine if all(one.rank < other.rank for other in others)]
        level = self.level(best.ticket.priority)
        return min(ahead, key=lambda one: (self.served(one.ticket.tenant, level), one.rank))

    @invariant()
    def the_head_is_that_of_one_who_looks_at_everything(self) -> None:
        assert self.queue.head() is self.first()
        for (tenant, level), served in self.virtual.items():
            assert self.queue.virtual(tenant, level) == pytest.approx(served)

    @invariant()
    def between_priorities_the_rank_alone_decides(self) -> None:
        head = self.queue.head()
        for one in self.entries:
            if head is not None and not self.same(one, head):
                assert head.rank < one.rank

    @invariant()
    def what_is_empty_is_forgotten(self) -> None:
        assert len(self.queue) == len(self.entries)
        assert [one.ticket.id for one in self.queue] == [
            one.ticket.id for one in sorted(self.entries, key=lambda one: one.rank)
        ]
        levels = {self.level(one.ticket.priority) for one in self.entries}
        lanes = [name for level in self.queue._levels.values() for name in level.lanes]
        assert sorted(lanes) == sorted(name for level in levels for name in self.tenants(level))
        assert len(self.queue._empty) == len(self.queue._levels) - len(levels)


class FcfsMachine(FairMachine):
    policy = SchedPolicy.FCFS


TestFair = FairMachine.TestCase
TestFair.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestFcfs = FcfsMachine.TestCase
TestFcfs.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5_000), st.booleans()), max_size=40))
def test_with_one_tenant_the_order_is_that_of_the_plain_queue(
    moves: list[tuple[int, int, bool]],
) -> None:
    plain, fair = TicketQueue(), FairQueue(SchedPolicy.PRIORITY, {})
    for number, (priority, arrival, take) in enumerate(moves):
        one = entry_of(f"t{number}", "", priority, arrival, number, SchedPolicy.PRIORITY)
        for queue in (plain, fair):
            queue.put(one)
            queue.charge("", priority, 7)
        assert plain.head() is fair.head()
        if take and (head := plain.head()) is not None:
            assert plain.take(head.ticket.id) is fair.take(head.ticket.id)
            assert plain.head() is fair.head()


def test_so_many_empty_levels_are_remembered_and_no_more() -> None:
    queue = FairQueue(SchedPolicy.PRIORITY, {})
    for priority in range(200):
        one = entry_of(f"t{priority}", "a", priority, 0, priority, SchedPolicy.PRIORITY)
        queue.put(one)
        queue.charge("a", priority, 10)
        queue.charge("a", -priority, 10)
        assert queue.take(one.ticket.id) is one
    assert len(queue._levels) == len(queue._empty) == 64
    assert (queue.virtual("a", 199), queue.virtual("a", 0)) == (10, 0)

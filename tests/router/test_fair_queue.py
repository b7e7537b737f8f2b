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
        self.virtual = {"a": 0.0, "b": 0.0, "c": 0.0}
        self.last: str | None = None
        self.count = 0

    @rule(puts=st.lists(_Puts, min_size=1, max_size=3))
    def put(self, puts: list[tuple[str, int, int]]) -> None:
        for tenant, priority, arrival in puts:
            self.count += 1
            name = f"t{self.count}"
            one = entry_of(name, tenant, priority, arrival, self.count, self.policy)
            active = {entry.ticket.tenant for entry in self.entries}
            if tenant not in active:
                least = [self.virtual[name] for name in active or ({self.last} - {None})]
                self.virtual[tenant] = max([self.virtual[tenant], *([min(least)] if least else [])])
            self.entries.append(one)
            self.queue.put(one)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.entries)))

    def leave(self, entry: Entry) -> None:
        self.entries.remove(entry)
        assert self.queue.take(entry.ticket.id) is entry
        assert self.queue.take(entry.ticket.id) is None
        if all(one.ticket.tenant != entry.ticket.tenant for one in self.entries):
            self.last = entry.ticket.tenant

    @precondition(lambda self: self.entries)
    @rule(cost=st.integers(0, 300))
    def serve_the_head(self, cost: int) -> None:
        head = self.queue.head()
        assert head is not None
        self.leave(head)
        self.charge(head.ticket.tenant, cost)

    @rule(tenant=st.sampled_from("abc"), tokens=st.integers(-50, 300))
    def charge(self, tenant: str, tokens: int) -> None:
        self.queue.charge(tenant, tokens)
        self.virtual[tenant] += tokens / WEIGHTS[tenant]

    def level(self, entry: Entry) -> int:
        return entry.ticket.priority if self.policy is SchedPolicy.PRIORITY else 0

    def first(self) -> Entry | None:
        if not self.entries:
            return None
        best = min(self.entries, key=lambda one: one.rank)
        others = [one for one in self.entries if self.level(one) != self.level(best)]
        mine = [one for one in self.entries if self.level(one) == self.level(best)]
        ahead = [one for one in mine if all(one.rank < other.rank for other in others)]
        return min(ahead, key=lambda one: (self.virtual[one.ticket.tenant], one.rank))

    @invariant()
    def the_head_is_that_of_one_who_looks_at_everything(self) -> None:
        assert self.queue.head() is self.first()
        assert {name: self.queue.virtual(name) for name in "abc"} == pytest.approx(self.virtual)

    @invariant()
    def between_priorities_the_rank_alone_decides(self) -> None:
        head = self.queue.head()
        for one in self.entries:
            if head is not None and self.level(one) != self.level(head):
                assert head.rank < one.rank

    @invariant()
    def what_is_empty_is_forgotten(self) -> None:
        assert len(self.queue) == len(self.entries)
        assert [one.ticket.id for one in self.queue] == [
            one.ticket.id for one in sorted(self.entries, key=lambda one: one.rank)
        ]
        assert set(self.queue._queued) == {one.ticket.tenant for one in self.entries}
        lanes = {(level, name) for level, lanes in self.queue._lanes.items() for name in lanes}
        assert len(lanes) == len({(self.level(one), one.ticket.tenant) for one in self.entries})


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
            queue.charge("", 7)
        assert plain.head() is fair.head()
        if take and (head := plain.head()) is not None:
            assert plain.take(head.ticket.id) is fair.take(head.ticket.id)
            assert plain.head() is fair.head()

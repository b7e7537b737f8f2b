"""What a ticket was charged is what is given back, once, unless it ran: against a plain list."""

from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core import RouterConfig, RouterCore
from router.errors import Busy
from router.fair_queue import FairQueue
from router.tenants import Terms
from router.ticket import Decision, Placement, Ticket
from tests.router.fake_cluster import FakeClock, FakeReplica

LIMIT = 10**6
ASKING = ("queue", "placed", "old")
ALL = ("queue", "placed", "admitted", "lost", "old")


@dataclass
class Seen:
    """A ticket as its owner knows it."""

    ticket: Ticket
    place: str = "queue"  # or "placed", "admitted", "lost", "old": let in by a router before
    bucket: int = 0  # what it was charged
    turn: int = 0  # the same, in virtual time


class ChargesMachine(RuleBasedStateMachine):
    """One tenant and one replica; time stands still, so that nothing fills the bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Seen] = {}
        self.kept = {"bucket": 0, "turn": 0}  # of what ran, and of what was generated
        self.count = 0
        self.replicas = 0
        self.start()

    def start(self) -> None:
        terms = (Terms("a", tokens_per_minute=LIMIT),)
        config = RouterConfig(lookahead=1, max_queued=2, expecting=1, tenants=terms)
        self.core = RouterCore(config, FakeClock(), Random(0))
        self.join()

    def join(self) -> None:
        self.replicas += 1
        self.replica = FakeReplica(f"r{self.replicas}", total=10, max_seqs=2)
        self.settle(self.core.report(self.replica.report()))

    def settle(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            assert isinstance(decision, Placement)
            seen = self.seen[decision.ticket]
            assert seen.place == "queue"
            seen.place, seen.turn = "placed", seen.ticket.cost

    def at(self, *places: str) -> list[Seen]:
        return [one for one in self.seen.values() if one.place in places]

    def pick(self, data: st.DataObject, *places: str) -> Seen:
        return data.draw(st.sampled_from(self.at(*places)))

    @initialize(cost=st.integers(1, 50), size=st.integers(1, 4))
    def begin(self, cost: int, size: int) -> None:
        self.ask(cost, size)

    @rule(cost=st.integers(0, 50), size=st.integers(1, 5))
    def ask(self, cost: int, size: int) -> None:
        mine = []
        for _ in range(size):
            self.count += 1
            name = f"t{self.count}"
            mine.append(Ticket(name, 0, 0, 3, 3, tenant="a", cost=cost, call=f"c{self.count}"))
        mine = [replace(one, call=mine[0].call) for one in mine]
        self.seen |= {one.id: Seen(one, bucket=cost) for one in mine}
        try:
            self.settle(self.core.acquire_all(mine))
        except Busy:
            for one in mine:
                del self.seen[one.id]

    @precondition(lambda self: self.at(*ASKING))
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """The connection broke before the answer came; or it is the first it hears of a router."""
        seen = self.pick(data, *ASKING)
        seen.place, seen.turn, seen.bucket = "queue", 0, seen.ticket.cost
        self.settle(self.core.acquire(replace(seen.ticket, again=True)))

    @precondition(lambda self: self.at("placed"))
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        seen = self.pick(data, "placed")
        assert self.replica.submit(seen.ticket.id, 3)
        seen.place = "admitted"
        self.replica.step()
        self.settle(self.core.report(self.replica.report()))

    @precondition(lambda self: self.at("placed"))
    @rule(data=st.data())
    def bounce(self, data: st.DataObject) -> None:
        seen = self.pick(data, "placed")
        seen.place, seen.turn = "queue", 0
        self.settle(self.core.bounced(seen.ticket.id))

    @precondition(lambda self: self.at(*ALL))
    @rule(data=st.data(), finished=st.booleans(), reported=st.booleans())
    def release(self, data: st.DataObject, finished: bool, reported: bool) -> None:
        seen = self.pick(data, *ALL)
        del self.seen[seen.ticket.id]
        ran = seen.place in ("admitted", "lost") or (finished and seen.place == "placed")
        if ran:
            self.kept["bucket"] += seen.bucket
            self.kept["turn"] += seen.turn
        if seen.place == "admitted":
            self.replica.end(seen.ticket.id)
            if reported:
                self.settle(self.core.report(self.replica.report()))
        for _ in range(2):  # twice is once
            self.settle(self.core.release(seen.ticket.id, finished=finished))

    @rule(tokens=st.integers(1, 100))
    def generate(self, tokens: int) -> None:
        self.kept = {name: amount + tokens for name, amount in self.kept.items()}
        self.settle(self.core.served({("a", 0): tokens}))

    @rule(really=st.sampled_from([False, False, True]))
    def lose_the_replica(self, really: bool) -> None:
        if not really:
            return
        lost = self.core.lost(self.replica.name)
        for name in lost.tickets:
            if name in self.seen:
                self.seen[name].place = "lost"
        for seen in self.seen.values():
            if seen.place == "admitted":
                seen.place = "lost"
        assert lost.decisions == []
        self.join()

    @rule(really=st.sampled_from([False, False, True]))
    def restart_the_router(self, really: bool) -> None:
        if not really:
            return
        for seen in self.seen.values():
            seen.place, seen.bucket, seen.turn = "old", 0, 0
        self.kept = {"bucket": 0, "turn": 0}
        self.start()
        self.core.remember([one.ticket for one in self.seen.values()])

    @invariant()
    def what_is_charged_is_what_runs_or_waits(self) -> None:
        (shown,) = self.core.gauges().by_tenant
        bucket = self.kept["bucket"] + sum(one.bucket for one in self.seen.values())
        assert shown.tokens_total == bucket >= 0
        lacking = self.core._tenants._usage["a"].lacks_s(LIMIT, 1000.0) * LIMIT / 60
        assert lacking == pytest.approx(bucket)
        queue = self.core._queue
        assert isinstance(queue, FairQueue)
        turns = self.kept["turn"] + sum(one.turn for one in self.seen.values())
        assert queue.virtual("a", 0) == turns >= 0


TestCharges = ChargesMachine.TestCase
TestCharges.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

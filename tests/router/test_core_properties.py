"""The router against simulated replicas whose messages come late, twice, out of order or never."""

from dataclasses import dataclass
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from router.core import RouterConfig, RouterCore
from router.errors import Busy, NeverFitsAnywhere
from router.report import Report
from router.ticket import Decision, Placement, Ticket
from tests.router.fake_cluster import FakeClock, FakeReplica

AGING_MS = 1_000
MAX_QUEUED = 4

_Needs = st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3))
_Rarely = st.sampled_from([False] * 5 + [True])


@dataclass
class Life:
    """What really became of a ticket, as its gateway knows it."""

    ticket: Ticket
    replica: str | None = None  # None: it waits in the router
    submitted: bool = False
    ended: bool = False

    @property
    def in_flight(self) -> bool:
        return self.replica is not None and not self.submitted

    @property
    def order(self) -> tuple[int, int]:
        return (self.ticket.arrival - self.ticket.priority * AGING_MS, self.ticket.arrival)


class RouterMachine(RuleBasedStateMachine):
    """Gateways, replicas and a network around one RouterCore.

    Gateways abort on the replica in the moment in which they release, so that what is really free
    can be said exactly; everything else takes any time in any order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.replicas: dict[str, FakeReplica] = {}
        self.dead: set[str] = set()
        self.network: list[Report] = []
        self.lives: dict[str, Life] = {}
        self.closed: set[str] = set()
        self.seen: dict[str, int] = {}
        self.count = 0
        self.joined = 0

    @initialize(
        lookahead=st.integers(0, 2), totals=st.lists(st.integers(6, 12), min_size=1, max_size=3)
    )
    def start(self, lookahead: int, totals: list[int]) -> None:
        self.lookahead = lookahead
        config = RouterConfig(
            aging_ms=AGING_MS, lookahead=lookahead, max_queued=MAX_QUEUED, expecting=1
        )
        self.core = RouterCore(config, self.clock, Random(0))
        for total in totals:
            self.join(total)
            self.deliver(self.network.pop())

    # Gateways

    @rule(burst=st.lists(_Needs, min_size=1, max_size=6))
    def ask(self, burst: list[tuple[int, int, int]]) -> None:
        for blocks, grows, priority in burst:
            self.count += 1
            arrival = round(self.clock.now * 1000)
            self.acquire(Ticket(f"t{self.count}", priority, arrival, blocks, blocks + grows))

    def acquire(self, ticket: Ticket) -> None:
        queued = sum(life.replica is None for life in self.lives.values())
        self.lives[ticket.id] = Life(ticket)
        answer = self.answer(ticket)
        if isinstance(answer, list):
            self.settle(answer)
            return
        del self.lives[ticket.id]
        if isinstance(answer, Busy):
            assert answer.queued == queued >= MAX_QUEUED
            assert not ticket.again
            assert 1.0 <= answer.retry_after <= 60.0
        else:
            assert ticket.blocks_max == answer.blocks > self.largest() == answer.total

    def answer(self, ticket: Ticket) -> list[Decision] | Busy | NeverFitsAnywhere:
        try:
            return self.core.acquire(ticket)
        except (Busy, NeverFitsAnywhere) as error:
            return error

    @precondition(lambda self: any(life.in_flight for life in self.lives.values()))
    @rule(data=st.data(), said=st.sampled_from(["yes", "yes", "yes", "full", "bad request"]))
    def submit(self, data: st.DataObject, said: str) -> None:
        ready = [life for life in self.lives.values() if life.in_flight]
        self.deliver_submit(data.draw(st.sampled_from(ready)), said)

    def deliver_submit(self, life: Life, said: str) -> None:
        assert life.replica is not None
        name, key = life.replica, life.ticket.id
        if name in self.dead:
            self.lose(name)
        elif said == "bad request":
            del self.lives[key]
            self.settle(self.core.release(key))
        elif said == "full" or not self.replicas[name].submit(key, life.ticket.blocks_now):
            assert said == "full", "granted beyond the replica's own queue"
            life.replica = None
            self.closed.add(name)
            self.settle(self.core.bounced(key))
        else:
            life.submitted = True

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.lives)))
        life = self.lives.pop(key)
        if life.replica is not None and life.replica not in self.dead:
            self.replicas[life.replica].end(key)
        self.settle(self.core.release(key))

    @precondition(lambda self: any(life.ended for life in self.lives.values()))
    @rule(data=st.data())
    def see_the_end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([k for k, life in self.lives.items() if life.ended]))
        del self.lives[key]
        self.settle(self.core.release(key, finished=True))

    @precondition(lambda self: any(life.in_flight for life in self.lives.values()))
    @rule()
    def submit_all(self) -> None:
        for life in list(self.lives.values()):
            if life.in_flight and life.ticket.id in self.lives:
                self.deliver_submit(life, "yes")

    @rule(key=st.integers(1, 50))
    def release_something_long_gone(self, key: int) -> None:
        if f"t{key}" not in self.lives:
            self.settle(self.core.release(f"t{key}"))

    # Replicas

    @precondition(lambda self: len(self.alive()) < 4)
    @rule(total=st.integers(6, 12))
    def join(self, total: int) -> None:
        self.joined += 1
        name = f"r{self.joined}"
        self.replicas[name] = FakeReplica(name, total=total, max_seqs=3, max_waiting=4)
        self.network.append(self.replicas[name].report())

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), ends=st.integers(0, 2))
    def step(self, data: st.DataObject, ends: int) -> None:
        self.work(self.replicas[data.draw(st.sampled_from(self.alive()))], ends)

    def work(self, replica: FakeReplica, ends: int) -> None:
        replica.step()
        for key in list(replica.running)[:ends]:
            replica.end(key)
            self.lives[key].ended = True

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), full=st.booleans())
    def send_report(self, data: st.DataObject, full: bool) -> None:
        name = data.draw(st.sampled_from(self.alive()))
        full = full or self.core.wants_full_report(name)
        self.network.append(self.replicas[name].report(full=full))

    @precondition(lambda self: self.network)
    @rule(data=st.data(), twice=st.booleans())
    def deliver_any(self, data: st.DataObject, twice: bool) -> None:
        at = data.draw(st.integers(0, len(self.network) - 1))
        self.deliver(self.network[at] if twice else self.network.pop(at))

    def deliver(self, report: Report) -> None:
        if report.seq > self.seen.get(report.replica, 0):
            self.seen[report.replica] = report.seq
            self.closed.discard(report.replica)
        self.settle(self.core.report(report))

    @precondition(lambda self: self.network)
    @rule(data=st.data(), really=_Rarely)
    def drop(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def hear_all(self, data: st.DataObject) -> None:
        """A full report arrives at once: then what is known is what is true."""
        name = data.draw(st.sampled_from(self.alive()))
        report = self.replicas[name].report(full=True)
        self.closed.discard(name)
        self.seen[name] = report.seq
        self.settle(self.core.report(report))
        account = self.core._ledger._accounts[name]
        over = [k for k in account.charged if self.lives[k].ended]
        assert account.free_blocks + self.blocks(over) == self.really_free(name)
        assert account.free_seats + len(over) == self.seats_really_free(name)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), really=_Rarely)
    def kill(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.dead.add(data.draw(st.sampled_from(self.alive())))

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), really=_Rarely)
    def declare_lost(self, data: st.DataObject, really: bool) -> None:
        """Rightly or by mistake."""
        if really:
            self.lose(data.draw(st.sampled_from(list(self.replicas))))

    def lose(self, name: str) -> None:
        moved = [life for life in self.lives.values() if life.replica == name and not life.ended]
        lost = self.core.lost(name)
        assert set(lost.tickets) >= {life.ticket.id for life in moved}
        self.closed.discard(name)
        for life in moved:
            del self.lives[life.ticket.id]
            if name not in self.dead:
                self.replicas[name].end(life.ticket.id)
        self.settle(lost.decisions)
        for life in moved:
            old = life.ticket
            self.count += 1
            key = f"t{self.count}"
            self.acquire(
                Ticket(key, old.priority, old.arrival, old.blocks_now, old.blocks_max, again=True)
            )

    @rule(seconds=st.floats(0.001, 5.0))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    # What is true

    def alive(self) -> list[str]:
        return [name for name in self.replicas if name not in self.dead]

    def largest(self) -> int:
        return max(a.figures.total_blocks for a in self.core._ledger.accounts())

    def blocks(self, keys: list[str]) -> int:
        return sum(self.lives[key].ticket.blocks_now for key in keys)

    def in_flight(self, name: str) -> list[str]:
        return [k for k, life in self.lives.items() if life.replica == name and life.in_flight]

    def really_free(self, name: str) -> int:
        replica = self.replicas[name]
        waiting = sum(replica.waiting.values())
        return replica.free - waiting - self.blocks(self.in_flight(name))

    def seats_really_free(self, name: str) -> int:
        replica = self.replicas[name]
        return replica.max_seqs - len(replica.held) - len(self.in_flight(name))

    def settle(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            life = self.lives[decision.ticket]
            assert life.replica is None, "placed twice"
            if not isinstance(decision, Placement):
                assert isinstance(decision.error, NeverFitsAnywhere)
                assert life.ticket.blocks_max > self.largest()
                del self.lives[decision.ticket]
                continue
            assert decision.replica not in self.closed, "placed on a closed replica"
            life.replica = decision.replica
            waiting = (other for other in self.lives.values() if other.replica is None)
            assert not any(other.order < life.order for other in waiting), "passed the head"
            if decision.replica not in self.dead:
                self.check_not_too_much(decision.replica)

    def check_not_too_much(self, name: str) -> None:
        """Without the lookahead, all that was granted can run at once."""
        replica = self.replicas[name]
        flying = self.in_flight(name)
        sizes = [*replica.running.values(), *replica.waiting.values()]
        sizes += [self.lives[key].ticket.blocks_now for key in flying]
        firm = sorted(sizes)[: len(sizes) - self.lookahead] if self.lookahead else sizes
        assert sum(firm) <= replica.total
        assert len(firm) <= replica.max_seqs
        assert len(replica.waiting) + len(flying) <= replica.max_waiting

    @invariant()
    def every_ticket_has_one_place(self) -> None:
        if not hasattr(self, "core"):
            return
        ledger, queue = self.core._ledger, self.core._queue
        for key, life in self.lives.items():
            assert (key in queue) is (life.replica is None)
            if life.replica is None:
                assert ledger.holder(key) is None
            elif not life.ended:
                assert ledger.holder(key) == life.replica, "a grant got lost"
            if life.in_flight:
                assert key in ledger._accounts[str(life.replica)].charged, "a charge got lost"
        assert len(queue) == sum(life.replica is None for life in self.lives.values())
        homes = {k for a in ledger.accounts() for k in (*a.charged, *a.admitted)}
        assert homes == set(ledger._home)
        assert len(homes) == sum(a.grants for a in ledger.accounts())

    @invariant()
    def charges_are_those_of_living_tickets(self) -> None:
        if not hasattr(self, "core"):
            return
        for account in self.core._ledger.accounts():
            assert account.charged_blocks == sum(g.blocks for g in account.charged.values())
            for key in account.charged:
                assert self.lives[key].replica == account.figures.replica

    @invariant()
    def what_is_thought_free_is_free(self) -> None:
        if not hasattr(self, "core"):
            return
        for account in self.core._ledger.accounts():
            name = account.figures.replica
            if name not in self.dead:
                assert account.free_blocks <= self.really_free(name)
                assert account.free_seats <= self.seats_really_free(name)

    @invariant()
    def the_head_waits_only_if_it_must_and_the_index_is_exact(self) -> None:
        if not hasattr(self, "core"):
            return
        ledger = self.core._ledger
        head = self.core._queue.head()
        if head is not None:
            assert not any(a.takes(head.ticket) for a in ledger.accounts())
        for blocks in (1, 3, 6, 9):
            probe = Ticket("probe", 0, 0, blocks, blocks)
            assert ledger.freest(probe) == ledger._freest_of_the_large(probe)

    def teardown(self) -> None:
        """Let everything run to its end: nothing waits for ever, and nothing stays charged."""
        if not hasattr(self, "core"):
            return
        for _ in range(200):
            for name in self.dead:
                self.lose(name)
            if not self.alive():
                self.join(12)
            self.submit_all()
            for name in self.alive():
                self.work(self.replicas[name], 99)
            for key in [k for k, life in self.lives.items() if life.ended]:
                del self.lives[key]
                self.settle(self.core.release(key, finished=True))
            for name in self.alive():
                full = self.core.wants_full_report(name)
                self.deliver(self.replicas[name].report(full=full))
            if not self.lives:
                break
        assert not self.lives, "something waits for ever"
        for name in self.alive():
            self.deliver(self.replicas[name].report(full=self.core.wants_full_report(name)))
        gauges = self.core.gauges()
        assert gauges.queued == 0
        for replica in gauges.replicas:
            assert replica.grants == 0
            assert replica.effective_free_blocks == replica.total_blocks


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=250, stateful_step_count=60, deadline=None)

"""Gateways, replicas and a network around one RouterCore, for stateful tests."""

from dataclasses import replace
from itertools import takewhile
from random import Random
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from router.core import RouterConfig, RouterCore
from router.errors import Busy, Expired, NeverFitsAnywhere, TenantBusy, TooManyTogether
from router.policy import Fleet, MostFreeBlocks, PlacementPolicy
from router.prefix_affinity import PrefixAffinity
from router.report import Report
from router.tenants import Terms
from router.ticket import Decision, Lost, Refusal, Ticket
from tests.router.belief import LOST_AFTER_S, SUSPECT_AFTER_S, Belief
from tests.router.fake_cluster import FakeClock, FakeReplica
from tests.router.life import AGING_MS, Life

MAX_QUEUED = 4

_No: TypeAlias = Busy | TenantBusy | NeverFitsAnywhere | TooManyTogether
_NOES = (Busy, TenantBusy, NeverFitsAnywhere, TooManyTogether)

_Needs = st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3))
_Bursts = st.lists(_Needs, min_size=1, max_size=6)
_Withins = st.sampled_from([None, None, None, 0.0, 2.0])
TENANTS = (Terms("a", max_in_flight=6), Terms("b", weight=3.0))
_Rarely = st.sampled_from([False] * 5 + [True])
_Policies = st.sampled_from([MostFreeBlocks(), PrefixAffinity(slack=0.5, worth=1.0)])
_Starts = st.fixed_dictionaries(
    {
        "policy": _Policies,
        "settle_s": st.sampled_from([0.0, 3.0]),
        "expecting": st.integers(1, 3),
        "admission_preemption": st.sampled_from([1, 0, 2]),
        "tenants": st.sampled_from([(), TENANTS]),
    }
)


class Cluster(RuleBasedStateMachine):
    """What happens; a subclass says what must be true.

    Gateways abort on the replica in the moment in which they release, so that what is really free
    can be said exactly; everything else takes any time in any order.
    """

    core: RouterCore
    belief: Belief

    def __init__(self) -> None:
        super().__init__()
        self.now = FakeClock()
        self.replicas: dict[str, FakeReplica] = {}
        self.dead: set[str] = set()
        self.network: list[Report] = []
        self.lives: dict[str, Life] = {}
        self.count = 0
        self.joined = 0

    @initialize(
        lookahead=st.integers(0, 2),
        totals=st.lists(st.integers(6, 12), min_size=1, max_size=3),
        start=_Starts,
        burst=_Bursts,
    )
    def begin(
        self,
        lookahead: int,
        totals: list[int],
        start: dict[str, Any],
        burst: list[tuple[int, int, int]],
    ) -> None:
        self.lookahead = lookahead
        self.start_router(start)
        self.ask(burst)
        for total in totals:
            self.join(total)
            self.deliver(self.network.pop())

    def start_router(self, start: dict[str, Any]) -> None:
        start = dict(start)
        self.policy: PlacementPolicy = start.pop("policy")
        config = RouterConfig(
            aging_ms=AGING_MS,
            lookahead=self.lookahead,
            max_queued=MAX_QUEUED,
            suspect_after_s=SUSPECT_AFTER_S,
            lost_after_s=LOST_AFTER_S,
            **start,
        )
        self.levels = config.admission_preemption
        self.fair = bool(config.tenants)
        self.belief = Belief(config.settle_s, config.expecting)
        self.core = RouterCore(config, self.clock, Random(0), self)

    def clock(self) -> float:
        """The router's clock; it reads it once, at the beginning of each turn."""
        self.belief.see_time(self.now())
        return self.now()

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """The machine is the router's placement policy, so that it sees every choice."""
        chosen = self.policy.choose(ticket, fleet)
        self.check_choice(ticket, chosen)
        return chosen

    def check_choice(self, ticket: Ticket, chosen: str | None) -> None:
        raise NotImplementedError

    def settle(self, decisions: list[Decision]) -> None:
        raise NotImplementedError

    # Gateways

    @rule(burst=_Bursts, within=_Withins, tenant=st.sampled_from("ab"))
    def ask(
        self, burst: list[tuple[int, int, int]], within: float | None = None, tenant: str = "a"
    ) -> None:
        for blocks, grows, priority in burst:
            self.acquire(self.ticket(blocks, grows, priority, tenant, within))

    @rule(burst=_Bursts, within=_Withins, tenant=st.sampled_from("ab"))
    def ask_together(
        self, burst: list[tuple[int, int, int]], within: float | None, tenant: str
    ) -> None:
        priority = burst[0][2]
        tickets = [self.ticket(one, more, priority, tenant, within) for one, more, _ in burst]
        call = tickets[0].id
        self.acquire(*(replace(ticket, call=call) for ticket in tickets))

    def ticket(
        self, blocks: int, grows: int, priority: int, tenant: str, within: float | None
    ) -> Ticket:
        self.count += 1
        name, arrival = f"t{self.count}", round(self.now() * 1000)
        return Ticket(
            name,
            priority,
            arrival,
            blocks,
            blocks + grows,
            tenant=tenant,
            cost=10 * blocks,
            start_within_s=within,
            prefix=self.prefix(blocks),
        )

    def prefix(self, blocks: int) -> tuple[int, ...]:
        """Hashes of a prompt of one of two kinds, if it is of any; the longer the more blocks."""
        kind = self.count % 3
        return tuple(100 * kind + depth for depth in range(1, 1 + blocks)) if kind else ()

    def acquire(self, *tickets: Ticket) -> None:
        """Ask for tickets together; what is refused is all of them, and gone."""
        now, ids = self.now(), {ticket.id for ticket in tickets}
        late = self.core.settling or any(
            life.replica is None and life.expired(now) for life in self.lives.values()
        )
        decisions, error = self.answer(tickets)
        # What time alone has changed is decided first, as if nobody had come.
        first = list(takewhile(lambda one: one.ticket not in ids, decisions)) if late else []
        self.settle(first)
        if error is None:
            self.lives |= {ticket.id: Life(ticket, since=now) for ticket in tickets}
        self.settle(decisions[len(first) :])
        if error is None:
            return
        queued = sum(life.replica is None for life in self.lives.values())
        if isinstance(error, NeverFitsAnywhere):
            assert not self.core.settling
            most = max(ticket.blocks_max for ticket in tickets)
            assert most >= error.blocks > self.largest() == error.total
            return
        assert not any(ticket.again for ticket in tickets)
        if isinstance(error, TooManyTogether):
            # One block and one seat for each at least, on those that are there or yet to come.
            assert not self.core.settling
            assert error.asked == len(tickets) > error.limit >= MAX_QUEUED + self.belief.expecting
            return
        assert 1.0 <= error.retry_after <= 60.0
        if isinstance(error, TenantBusy):
            calls = {one.ticket.call or one.ticket.id for one in self.lives.values()}
            assert error.in_flight >= 6
            assert len(calls) >= 6
        else:
            assert error.queued == queued
            assert queued + len(tickets) > MAX_QUEUED

    def answer(self, tickets: tuple[Ticket, ...]) -> tuple[list[Decision], _No | None]:
        """What was decided about others, or all if the tickets are let in, and why they are not."""
        try:
            decisions = self.core.acquire_all(tickets)
        except _NOES as error:
            return [], error
        ids = {ticket.id for ticket in tickets}
        mine = [one.error for one in decisions if isinstance(one, Refusal) and one.ticket in ids]
        error = next((one for one in mine if not isinstance(one, Expired)), None)
        if error is None:
            return decisions, None
        assert isinstance(error, _NOES)
        assert len(mine) == len(tickets), "a part of a group was let in"
        return [one for one in decisions if one.ticket not in ids], error

    @rule(tenant=st.sampled_from("ab"), priority=st.integers(0, 3), tokens=st.integers(1, 200))
    def generate(self, tenant: str, priority: int, tokens: int) -> None:
        self.settle(self.core.served({(tenant, priority): tokens}))

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
        elif said == "full" or not self.replicas[name].submit(
            key, life.ticket.blocks_now, life.ticket.prefix
        ):
            assert said == "full", "granted beyond the replica's own queue"
            life.replica, life.preempting = None, False
            self.belief.closed.add(name)
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
    @rule(data=st.data(), keys=st.sets(st.sampled_from([101, 102, 103, 201, 202]), min_size=1))
    def evict(self, data: st.DataObject, keys: set[int]) -> None:
        self.replicas[data.draw(st.sampled_from(self.alive()))].evict(sorted(keys))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), full=st.booleans())
    def send_report(self, data: st.DataObject, full: bool) -> None:
        name = data.draw(st.sampled_from(self.alive()))
        full = full or self.core.wants_full_report(name)
        self.network.append(self.replicas[name].report(full=full))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), leaving=st.booleans())
    def leave_or_stay(self, data: st.DataObject, leaving: bool) -> None:
        self.replicas[data.draw(st.sampled_from(self.alive()))].leaving = leaving

    @precondition(lambda self: self.network)
    @rule(data=st.data(), twice=st.booleans())
    def deliver_any(self, data: st.DataObject, twice: bool) -> None:
        at = data.draw(st.integers(0, len(self.network) - 1))
        self.deliver(self.network[at] if twice else self.network.pop(at))

    def deliver(self, report: Report) -> None:
        news = self.belief.hear(report, self.now())
        decisions = self.core.report(report)
        if news and report.held is not None:
            for key in set(report.held) & set(self.lives):
                self.lives[key].forgotten = False
        self.settle(decisions)

    @precondition(lambda self: self.network)
    @rule(data=st.data(), really=_Rarely)
    def drop(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), really=_Rarely)
    def kill(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.dead.add(data.draw(st.sampled_from(self.alive())))

    # The router and its owner

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), really=_Rarely)
    def declare_lost(self, data: st.DataObject, really: bool) -> None:
        """Rightly or by mistake."""
        if really:
            self.lose(data.draw(st.sampled_from(list(self.replicas))))

    def lose(self, name: str) -> None:
        self.belief.lose(name)
        self.follow_loss(self.core.lost(name))

    def follow_loss(self, lost: Lost) -> None:
        name = lost.replica
        moved = [life for life in self.lives.values() if life.replica == name and not life.ended]
        assert set(lost.tickets) >= {life.ticket.id for life in moved if not life.forgotten}
        for life in moved:
            del self.lives[life.ticket.id]
            if name not in self.dead:
                self.replicas[name].end(life.ticket.id)
        self.settle(lost.decisions)
        for life in moved:
            self.settle(self.core.release(life.ticket.id))
            self.count += 1
            call = life.ticket.call or life.ticket.id
            again = replace(
                life.ticket, id=f"t{self.count}", again=True, cost=0, call=call, start_within_s=None
            )
            self.acquire(again)

    @precondition(lambda self: self.replicas)
    @rule(data=st.data())
    def cannot_reach(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.replicas)))
        if name in self.belief.newest and name not in self.belief.unreachable:
            self.belief.unreachable.add(name)
            lost = self.core.unreachable(name)
            assert lost.tickets == ()
            self.settle(lost.decisions)
        else:
            self.belief.lose(name)
            self.follow_loss(self.core.unreachable(name))

    @rule(seconds=st.floats(0.001, 5.0))
    def wait(self, seconds: float) -> None:
        self.now.now += seconds

    @rule(seconds=st.sampled_from([0.1, 1.0, 1.0, 1.0, 3.0, 60.0]))
    def tick(self, seconds: float) -> None:
        self.now.now += seconds
        self.settle(self.core.tick())
        self.belief.ticked = self.now()

    @rule(seconds=st.integers(5, 20), lose=st.booleans())
    def hear_nothing(self, seconds: int, lose: bool) -> None:
        for _ in range(seconds):
            self.tick(1.0)
        for name in self.core.silent() if lose else ():
            self.lose(name)

    @rule(replicas=st.integers(1, 3))
    def expect(self, replicas: int) -> None:
        self.belief.expecting = replicas
        self.settle(self.core.expect(replicas))

    @rule(really=_Rarely, start=_Starts, burst=_Bursts)
    def restart_router(
        self, really: bool, start: dict[str, Any], burst: list[tuple[int, int, int]]
    ) -> None:
        """Its grants are forgotten, what was under way to it is lost, who waits asks again."""
        if not really:
            return
        while any(life.in_flight for life in self.lives.values()):
            self.submit_all()
        self.network.clear()
        self.start_router(start)
        self.core.remember([one.ticket for one in self.lives.values() if one.replica is not None])
        for life in list(self.lives.values()):
            life.forgotten = life.replica is not None
            if life.replica is None:
                self.acquire(replace(life.ticket, again=True))
        self.ask(burst)

    # What is true

    def alive(self) -> list[str]:
        return [name for name in self.replicas if name not in self.dead]

    def largest(self) -> int:
        return max(a.figures.total_blocks for a in self.core._ledger.accounts())

"""The router against simulated replicas whose messages come late, twice, out of order or never."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from router.errors import Expired, NeverFitsAnywhere
from router.preempting import where_it_preempts
from router.prefix_affinity import PrefixAffinity
from router.ticket import Decision, Placement, Ticket
from tests.router.life import Life
from tests.router.machine import Cluster
from tests.router.test_prefix_index import assert_consistent, known


class RouterMachine(Cluster):
    """What must be true, whatever happens."""

    def check_choice(self, ticket: Ticket, chosen: str | None) -> None:
        """A suspect only if nobody else takes it; nobody who is closed or leaves."""
        accounts = self.core._ledger.accounts()
        assert not self.belief.settles(self.now(), self.complete()), "placed while it settles"
        able = {a.figures.replica for a in accounts if a.takes(ticket)}
        assert not able & (self.belief.closed | self.belief.leaving)
        trusted = able - self.belief.suspects
        assert chosen in (trusted or able) if able else chosen is None
        if isinstance(self.policy, PrefixAffinity) and chosen is not None:
            assert chosen in self.by_prefix(ticket)

    def by_prefix(self, ticket: Ticket) -> set[str]:
        """Where it may go by prefix: what looking at everybody says."""
        ledger = self.core._ledger
        freest = ledger._freest_of_the_able(ticket)
        assert freest is not None
        level = ledger.level(freest, ticket)
        saved: dict[str, tuple[int, int]] = {}
        for account in ledger.accounts():
            name = account.figures.replica
            held, in_use = self.held(name, ticket)
            more = held - self.held(freest, ticket)[0]
            lag = ledger.free_if_shared(freest) - ledger.free_if_shared(name) - in_use
            slack = 0.5 * ledger.total_blocks(freest)
            if more > 0 and ledger.level(name, ticket) == level and lag <= min(slack, more):
                saved[name] = (more, -lag)
        best = max(saved.values(), default=None)
        return {name for name, one in saved.items() if one == best} or {freest}

    def held(self, name: str, ticket: Ticket) -> tuple[int, int]:
        """Blocks of its prompt there, and how many of them tickets there are known to use."""
        there = known(self.core._ledger._prefixes, name)
        held = [depth for depth, key in enumerate(ticket.prefix, start=1) if key in there]
        account = self.core._ledger._accounts[name]
        grants = (*account.charged.values(), *account.admitted.values())
        used = {key for one in grants if one.entry for key in one.entry.ticket.prefix[3::4]}
        upto = max(held, default=0)
        return upto, max(
            (d for d in range(4, upto + 1, 4) if ticket.prefix[d - 1] in used), default=0
        )

    def settle(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            life = self.lives[decision.ticket]
            assert life.replica is None, "placed twice"
            if not isinstance(decision, Placement):
                if isinstance(decision.error, Expired):
                    assert life.expired(self.now()), "refused too early"
                else:
                    assert isinstance(decision.error, NeverFitsAnywhere)
                    assert life.ticket.blocks_max > self.largest()
                del self.lives[decision.ticket]
                continue
            assert not life.expired(self.now()), "placed after its time"
            assert not self.core.settling
            name = decision.replica
            assert name not in self.belief.closed, "placed on a closed replica"
            assert name not in self.belief.leaving, "placed on a replica that leaves"
            life.replica = name
            account = self.core._ledger._accounts[name]
            life.preempting = account.charged[decision.ticket].preempting
            if life.preempting:
                self.check_preempts(life)
            for other in self.lives.values():
                if other.replica is None and other.order < life.order:
                    assert self.fair, "passed the head"
                    assert life.passes(other), "passed the head"
            if name not in self.dead:
                self.check_not_too_much(name)
        assert self.core.settling is self.belief.settles(self.now(), self.complete())

    def check_preempts(self, life: Life) -> None:
        assert self.levels > 0
        assert life.replica not in self.belief.suspects
        limit = life.ticket.priority - self.levels
        assert any(
            other.ticket.priority <= limit and other.order >= life.order
            for other in self.lives.values()
            if other.replica == life.replica and not other.forgotten
        ), "there is nobody to preempt"

    def check_not_too_much(self, name: str) -> None:
        """Without the lookahead and those that preempt, all that was granted can run at once."""
        replica = self.replicas[name]
        flying = self.in_flight(name)
        sizes = {**replica.running, **replica.waiting}
        sizes |= {key: self.lives[key].ticket.blocks_now for key in flying}
        calm = sorted(blocks for key, blocks in sizes.items() if not self.preempts(key))
        firm = calm[: len(calm) - self.lookahead] if self.lookahead else calm
        assert sum(firm) <= replica.total
        assert len(firm) <= replica.max_seqs
        assert len(replica.waiting) + len(flying) <= replica.max_waiting

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def hear_all(self, data: st.DataObject) -> None:
        """A full report arrives at once: then what is known is what is true."""
        name = data.draw(st.sampled_from(self.alive()))
        self.deliver(self.replicas[name].report(full=True))
        account = self.core._ledger._accounts[name]
        said = self.core._ledger._prefixes._tables.get(name, {})
        assert said.keys() == self.replicas[name].cached.keys()
        over = [k for k in account.charged if self.lives[k].ended]
        assert account.free_blocks + self.blocks(over) == self.really_free(name)
        assert account.free_seats + len(over) == self.seats_really_free(name)

    def complete(self) -> set[str]:
        return {a.figures.replica for a in self.core._ledger.accounts() if not a.gap}

    def preempts(self, key: str) -> bool:
        return key in self.lives and self.lives[key].preempting

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

    @invariant()
    def every_ticket_has_one_place(self) -> None:
        if not hasattr(self, "core"):
            return
        ledger, queue = self.core._ledger, self.core._queue
        for key, life in self.lives.items():
            assert (key in queue) is (life.replica is None)
            holder = ledger.holder(key)
            if life.replica is None:
                assert holder is None
            elif life.forgotten:
                assert holder in (None, life.replica)
            elif not life.ended:
                assert holder == life.replica, "a grant got lost"
            if life.in_flight:
                assert key in ledger._accounts[str(life.replica)].charged, "a charge got lost"
        assert len(queue) == sum(life.replica is None for life in self.lives.values())
        homes = {k for a in ledger.accounts() for k in (*a.charged, *a.admitted)}
        assert homes == set(ledger._home)
        assert len(homes) == sum(a.grants for a in ledger.accounts())

    @invariant()
    def calls_under_way_are_those_that_have_not_ended(self) -> None:
        if not hasattr(self, "core") or not self.fair:
            return
        for shown in self.core.gauges().by_tenant:
            mine = [one for one in self.lives.values() if one.ticket.tenant == shown.tenant]
            calls = {one.ticket.call or one.ticket.id for one in mine}
            assert shown.queued == sum(one.replica is None for one in mine)
            assert shown.in_flight == len(calls)

    @invariant()
    def charges_are_those_of_living_tickets(self) -> None:
        if not hasattr(self, "core"):
            return
        for account in self.core._ledger.accounts():
            assert account.charged_blocks == sum(g.blocks for g in account.charged.values())
            assert account.charged_shared == sum(g.shared for g in account.charged.values())
            assert sum(g.preempting for g in account.charged.values()) <= 1
            for key in account.charged:
                assert self.lives[key].replica == account.figures.replica

    @invariant()
    def what_is_expected_is_expected_of_those_that_have_grants(self) -> None:
        if not hasattr(self, "core"):
            return
        ledger = self.core._ledger
        grants = {
            key: (account.figures.replica, grant.entry.ticket.prefix)
            for account in ledger.accounts()
            for key, grant in (*account.charged.items(), *account.admitted.items())
            if grant.entry is not None and grant.entry.ticket.prefix
        }
        expected = ledger._prefixes._expected.items()
        assert {key: one.replica for key, one in expected} == {
            k: name for k, (name, _) in grants.items()
        }
        assert all(one.counted == grants[key][1][3::4] for key, one in expected)
        assert_consistent(ledger._prefixes)

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
        if head is not None and not self.core.settling:
            assert not any(a.takes(head.ticket) for a in ledger.accounts())
            if self.levels:
                assert where_it_preempts(head, ledger.accounts(), self.levels) is None
        for blocks in (1, 3, 6, 9):
            probe = Ticket("probe", 0, 0, blocks, blocks)
            assert ledger.freest(probe) == ledger._freest_of_the_able(probe)

    @invariant()
    def health_is_what_a_plain_model_says(self) -> None:
        if not hasattr(self, "core"):
            return
        assert set(self.core.silent()) == self.belief.dead(self.now())
        gauges = self.core.gauges()
        replicas = gauges.replicas
        assert {r.replica for r in replicas} == set(self.belief.newest)
        assert {r.replica for r in replicas if r.suspect} == self.belief.suspects
        assert {r.replica for r in replicas if r.unreachable} == self.belief.unreachable
        assert {r.replica for r in replicas if r.leaving} == self.belief.leaving
        waiting = [life.ticket.blocks_now for life in self.lives.values() if life.replica is None]
        assert (gauges.queued, gauges.queued_blocks) == (len(waiting), sum(waiting))

    def teardown(self) -> None:
        """Let everything run to its end: nothing waits for ever, and nothing stays charged."""
        if not hasattr(self, "core"):
            return
        for replica in self.replicas.values():
            replica.leaving = False
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
            self.tick(1.0)
            if not self.lives:
                break
        assert not self.lives, "something waits for ever"
        for name in self.alive():
            self.deliver(self.replicas[name].report(full=self.core.wants_full_report(name)))
        gauges = self.core.gauges()
        assert gauges.queued == 0
        for shown in gauges.replicas:
            assert shown.grants == 0
            assert shown.effective_free_blocks == shown.total_blocks


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=250, stateful_step_count=60, deadline=None)

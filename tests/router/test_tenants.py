"""Limits of tenants: what is under way, and tokens a minute, against a plain model."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core import RouterConfig, RouterCore
from router.drain import no_earlier
from router.errors import Busy, TenantBusy, TenantRate
from router.tenants import Tenants, Terms
from router.ticket import Ticket
from tests.router.fake_cluster import FakeClock, FakeReplica, make_core, ticket, where

A = Terms("a", max_in_flight=2, tokens_per_minute=600)
B = Terms("b", weight=3.0)
CALLS = ("c1", "c2", "c3", "c4")


def of(name: str, tenant: str = "a", call: str = "", cost: int = 0, blocks: int = 5) -> Ticket:
    return replace(ticket(name, blocks), tenant=tenant, call=call, cost=cost)


def core_with(*terms: Terms, clock: FakeClock | None = None, queued: int = 99) -> RouterCore:
    config = RouterConfig(lookahead=0, max_queued=queued, tenants=terms)
    return make_core(FakeReplica("r"), config=config, clock=clock)


def test_one_call_more_than_allowed_is_refused_with_its_fields() -> None:
    core = core_with(A, B)
    core.acquire(of("1"))
    core.acquire_all([of("2", call="2"), of("3", call="2")])
    with pytest.raises(TenantBusy) as caught:
        core.acquire(of("4"))
    error = caught.value
    assert (error.tenant, error.in_flight, error.limit) == ("a", 2, 2)
    assert 1.0 <= error.retry_after <= 60.0
    assert where(core.acquire(of("5", tenant="b"))) == {"5": "r"}
    assert where(core.acquire(of("6", call="2"))) == {"6": "r"}, "of a call that is under way"
    core.release("1")
    assert where(core.acquire(of("4"))) == {"4": "r"}


def test_what_had_a_place_is_let_in_beyond_the_limit_and_counts() -> None:
    core = core_with(A)
    for name in "123":
        core.acquire(replace(of(name), again=True))
    assert core.gauges().by_tenant[0].in_flight == 3


def test_a_refused_call_leaves_nothing() -> None:
    clock = FakeClock()
    core = core_with(Terms("a", max_in_flight=1, tokens_per_minute=60), clock=clock, queued=0)
    core.acquire(of("big", tenant="b", blocks=100))
    for _ in range(3):
        with pytest.raises(Exception, match="0 of 0 places"):
            core.acquire_all([of("x", cost=20), of("y", cost=20)])
    (a,) = core.gauges().by_tenant
    assert (a.in_flight, a.tokens_total) == (0, 0)
    core.release("big")
    assert where(core.acquire(of("z", cost=60))) == {"z": "r"}


def test_a_prompt_that_never_ran_is_not_charged() -> None:
    """Given up, expired or impossible while it waited; but what ran is paid for."""
    clock = FakeClock()
    replica = FakeReplica("r")
    config = RouterConfig(lookahead=0, tenants=(Terms("a", tokens_per_minute=100),))
    core = make_core(replica, config=config, clock=clock)
    core.acquire(of("big", tenant="b", blocks=100))
    core.acquire(of("left", cost=50))
    core.acquire(replace(of("late", cost=50), start_within_s=1.0))
    with pytest.raises(TenantRate):
        core.acquire(of("x", cost=50))
    core.release("left")
    clock.now += 1.0
    core.tick()
    assert core.gauges().by_tenant[0].tokens_total == 0
    core.release("big")
    core.acquire(of("placed", cost=100))
    core.release("placed")
    assert core.gauges().by_tenant[0].tokens_total == 0
    core.acquire(of("ran", cost=50))
    replica.submit("ran", 5)
    core.report(replica.report())
    core.release("ran")
    assert core.gauges().by_tenant[0].tokens_total == 50


def test_what_a_router_before_this_one_let_in_gives_nothing_back() -> None:
    core = core_with(Terms("a", tokens_per_minute=1000))
    waiting = replace(of("x", cost=100), again=True)
    core.remember([of("runs", cost=100)])
    core.remember([waiting])
    core.acquire(of("big", tenant="b", blocks=96))
    core.acquire(waiting)
    assert core.gauges().by_tenant[0].tokens_total == 100
    core.release("x")
    core.release("runs")
    assert core.gauges().by_tenant[0].tokens_total == 0


def test_only_calls_that_ran_say_how_long_one_lasts() -> None:
    """Sixty that met a full queue made it seem that one of a hundred seconds ends in an instant."""
    clock = FakeClock()
    core = core_with(Terms("a", max_in_flight=3), Terms("b"), clock=clock, queued=1)
    for name in ("x", "y"):
        core.acquire(of(name, blocks=50))
    core.acquire(of("waits", tenant="b"))
    for number in range(60):
        with pytest.raises(Busy):
            core.acquire(of(f"busy{number}"))
    core.release("waits")
    for number in range(60):
        core.acquire(replace(of(f"late{number}"), start_within_s=1.0))
        clock.now += 1.0
        core.tick()
        core.acquire(of(f"left{number}"))
        core.release(f"left{number}")
    core.acquire(of("z"))
    with pytest.raises(TenantBusy) as caught:
        core.acquire(of("one more"))
    # Nothing has ended yet, so the first guess of 5 s stands, for one of three.
    assert 0.75 * 5 / 3 <= caught.value.retry_after <= 1.25 * 5 / 3
    core.release("x", finished=True)
    core.acquire(of("z2"))
    with pytest.raises(TenantBusy) as caught:
        core.acquire(of("one more"))
    lifetime = 5 + 0.1 * (60 - 5)
    assert 0.75 * lifetime / 3 <= caught.value.retry_after <= 1.25 * lifetime / 3


def test_what_a_router_before_this_one_let_in_says_nothing_about_how_long_it_took() -> None:
    clock = FakeClock()
    core = core_with(Terms("a", max_in_flight=1), clock=clock)
    core.remember([of("old")])
    clock.now += 1000.0
    core.release("old", finished=True)
    core.acquire(of("x"))
    with pytest.raises(TenantBusy) as caught:
        core.acquire(of("y"))
    assert caught.value.retry_after <= 1.25 * 5


def test_a_bounce_and_a_loss_charge_nothing_twice() -> None:
    replica = FakeReplica("r")
    core = make_core(replica, config=RouterConfig(tenants=(A,)))
    core.acquire(of("x", cost=100))
    assert core.bounced("x") == []
    assert where(core.report(replica.report())) == {"x": "r"}
    core.lost("r")
    core.report(FakeReplica("s").report())
    # What goes on elsewhere says so: it brings no cost.
    core.acquire(replace(of("x.1", call="x"), again=True))
    core.release("x")
    (a,) = core.gauges().by_tenant
    assert (a.in_flight, a.tokens_total) == (1, 100)
    core.release("x.1")
    assert core.gauges().by_tenant[0].in_flight == 0


@pytest.mark.parametrize("cost", [1, 100, 600, 6000])
def test_retry_after_is_when_it_may_begin_and_never_before(cost: int) -> None:
    """Whoever obeys it gets in, if the tenant has used nothing in the meantime."""
    for seed in range(20):
        clock = FakeClock()
        core = RouterCore(RouterConfig(tenants=(A,)), clock, Random(seed))
        core.report(FakeReplica("r").report())
        core.served({("a", 0): 900})
        with pytest.raises(TenantRate) as caught:
            core.acquire(of("x", cost=cost))
        error = caught.value
        assert (error.tenant, error.tokens, error.limit) == ("a", cost, 600)
        lacking = 300 + min(cost, 600)
        assert lacking / 10 <= error.retry_after <= 1.5 * lacking / 10
        clock.now += error.retry_after
        assert core.acquire(of("x", cost=cost))


def test_a_minutes_tokens_are_all_that_idling_saves() -> None:
    clock = FakeClock()
    core = core_with(Terms("a", tokens_per_minute=600), clock=clock)
    clock.now += 1e6
    core.acquire(of("x", cost=600))
    with pytest.raises(TenantRate):
        core.acquire(of("y", cost=1))


def test_times_are_moved_later_only() -> None:
    rng = Random(0)
    times = [no_earlier(100.0, 1.0, rng) for _ in range(200)]
    assert 100.0 <= min(times) < 110.0
    assert 140.0 < max(times) <= 150.0
    assert no_earlier(0.0, 1.0, rng) >= 1.0


@pytest.mark.parametrize("wrong", [{"weight": 0}, {"max_in_flight": 0}, {"tokens_per_minute": -1}])
def test_terms_are_positive(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        Terms("a", **wrong)  # type: ignore[arg-type]


class LimitsMachine(RuleBasedStateMachine):
    """Tickets come and go in any order; the model keeps a plain list of them, and of all uses."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tenants = Tenants((A, B))
        self.live: dict[str, tuple[str, str, int]] = {}  # ticket -> tenant, call, what it paid
        self.level = 600.0  # of a
        self.used = {"a": 0, "b": 0}
        self.count = 0

    def use(self, tenant: str, tokens: int) -> None:
        self.used[tenant] += tokens
        if tenant == "a":
            self.level = min(600.0, self.level - tokens)

    def calls(self, tenant: str) -> set[str]:
        return {call for whose, call, _ in self.live.values() if whose == tenant}

    @rule(tenant=st.sampled_from("ab"), call=st.sampled_from(CALLS), cost=st.integers(0, 700))
    def take(self, tenant: str, call: str, cost: int) -> None:
        self.count += 1
        one = of(f"t{self.count}", tenant, tenant + call, cost)
        error = self.tenants.refusal([one], self.now, lambda s: s, lambda s: s)
        calls = self.calls(tenant)
        if tenant == "a" and len(calls) >= 2 and one.call not in calls:
            assert isinstance(error, TenantBusy)
            assert error.in_flight == len(calls)
        elif tenant == "a" and (lacking := min(max(cost, 1), 600) - self.level) > 1e-6:
            assert isinstance(error, TenantRate)
            assert error.retry_after == pytest.approx(lacking / 10)
        elif tenant == "b" or lacking < -1e-6:
            assert error is None
        if error is None:
            for _ in range(2):  # twice is once
                self.tenants.take(one, self.now)
            self.live[one.id] = (tenant, one.call, cost)
            self.use(tenant, cost)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), ran=st.booleans())
    def drop(self, data: st.DataObject, ran: bool) -> None:
        name = data.draw(st.sampled_from(list(self.live)))
        tenant, _, paid = self.live.pop(name)
        for _ in range(2):
            self.tenants.drop(name, self.now, ran=ran)
        if not ran:
            self.use(tenant, -paid)

    @rule(tenant=st.sampled_from("ab"), cost=st.integers(1, 700), asks=st.booleans())
    def remember(self, tenant: str, cost: int, asks: bool) -> None:
        """One that a router before this one let in; it pays if it asks again."""
        self.count += 1
        one = of(f"t{self.count}", tenant, f"old{self.count}", cost)
        self.tenants.take(one, self.now, charge=False)
        if asks:
            self.tenants.take(one, self.now)
            self.use(tenant, cost)
        self.live[one.id] = (tenant, one.call, cost if asks else 0)

    @rule(tenant=st.sampled_from("ab"), tokens=st.integers(1, 400))
    def serve(self, tenant: str, tokens: int) -> None:
        self.tenants.served(tenant, tokens, self.now)
        self.tenants.served("unknown", 7, self.now)
        self.use(tenant, tokens)

    @rule(seconds=st.floats(0.0, 90.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.level = min(600.0, self.level + 10 * seconds)

    @invariant()
    def what_is_counted_is_what_is_under_way(self) -> None:
        for terms, in_flight, tokens in self.tenants.figures():
            assert in_flight == len(self.calls(terms.name))
            assert tokens == self.used[terms.name]

    def teardown(self) -> None:
        for name in self.live:
            self.tenants.drop(name, self.now, ran=True)
        assert (self.tenants._calls, self.tenants._call_of) == ({}, {})


TestLimits = LimitsMachine.TestCase
TestLimits.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

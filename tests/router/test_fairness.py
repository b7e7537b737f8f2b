"""Tenants share by weight, in tokens, and nobody waits longer than aging allows."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import RouterConfig, RouterCore
from router.fair_queue import FairQueue
from router.tenants import Terms
from router.ticket import Ticket
from tests.router.fake_cluster import FakeClock, FakeReplica, make_core, ticket, where

AGING_MS = 1_000


class Shop:
    """One seat; a request takes a second. Each tenant is served as the router says."""

    def __init__(self, *terms: Terms, **config: object) -> None:
        self.clock = FakeClock(0.0)
        settings_ = {"aging_ms": AGING_MS, "lookahead": 0, "max_queued": 10_000} | config
        self.core = make_core(
            FakeReplica("r", total=1),
            config=RouterConfig(tenants=terms, **settings_),  # type: ignore[arg-type]
            clock=self.clock,
        )
        self.running: str | None = None
        self.tenant: dict[str, str] = {}
        self.priority: dict[str, int] = {}
        self.order: list[str] = []
        self.tokens: dict[str, int] = {}
        self.count = 0

    def ask(self, tenant: str, priority: int = 0, cost: int = 0, arrival: int | None = None) -> str:
        self.count += 1
        name = f"{tenant}{self.count}"
        self.tenant[name], self.priority[name] = tenant, priority
        when = round(self.clock() * 1000) if arrival is None else arrival
        self.settle(self.core.acquire(Ticket(name, priority, when, 1, 1, False, "", tenant, cost)))
        return name

    def second(self, generated: Callable[[str], int] = lambda _: 0) -> None:
        """The one that runs ends, after so many tokens, and the next is placed."""
        self.clock.now += 1.0
        ended, self.running = self.running, None
        if ended is None:
            return
        tenant = self.tenant[ended]
        if tokens := generated(tenant):
            self.tokens[tenant] = self.tokens.get(tenant, 0) + tokens
            self.settle(self.core.served({(tenant, self.priority[ended]): tokens}))
        self.settle(self.core.release(ended, finished=True))

    def settle(self, decisions: list) -> None:  # type: ignore[type-arg]
        for name in where(decisions):
            assert self.running is None
            self.running = name
            self.order.append(self.tenant[name])

    def shares(self, last: int = 0) -> dict[str, int]:
        order = self.order[-last:]
        return {name: order.count(name) for name in sorted(set(order))}


A, B = Terms("a"), Terms("b", weight=3.0)


@pytest.mark.parametrize("cost", [0, 100])
def test_two_with_a_backlog_get_tokens_by_weight_within_one_request(cost: int) -> None:
    """Whether it is the prompt that costs or the answer."""
    shop = Shop(A, B)
    for _ in range(200):
        shop.ask("a", cost=cost)
    for _ in range(200):
        shop.ask("b", cost=cost)
    begin = len(shop.order)
    for _ in range(200):
        shop.second(lambda _: 100 - cost)
        served = shop.order[begin:]
        assert abs(3 * served.count("a") - served.count("b")) <= 4


def test_long_requests_weigh_as_much_as_they_are_long() -> None:
    shop = Shop(Terms("a"), Terms("b"))
    for tenant in "ab":
        for _ in range(400):
            shop.ask(tenant)
    for _ in range(400):
        shop.second({"a": 10, "b": 90}.__getitem__)
        if len(shop.tokens) == 2:
            assert abs(shop.tokens["a"] - shop.tokens["b"]) <= 2 * 90
    assert shop.shares(last=100) == {"a": 90, "b": 10}


def test_what_one_does_not_use_goes_to_the_others() -> None:
    shop = Shop(A, B)
    for _ in range(50):
        shop.ask("a")
    for _ in range(50):
        shop.second(lambda _: 100)
    assert shop.shares() == {"a": 50}


@pytest.mark.parametrize("idle_s", [0, 1000])
def test_who_comes_back_has_saved_nothing(idle_s: int) -> None:
    """Nor pays for what it had when it was alone."""
    shop = Shop(Terms("a"), Terms("b"))
    shop.ask("b")
    for _ in range(300):
        shop.ask("a")
    for _ in range(100):
        shop.second(lambda _: 100)
    shop.clock.now += idle_s
    begin = len(shop.order)
    for _ in range(100):
        shop.ask("b")
    for _ in range(100):
        shop.second(lambda _: 100)
    back = shop.order[begin:]
    for end in range(2, len(back)):
        assert abs(2 * back[:end].count("b") - end) <= 2


def test_what_is_parked_at_another_priority_saves_nothing() -> None:
    """One low request waited for a minute; its tenant had the next forty turns at priority 0."""
    shop = Shop(Terms("a"), Terms("b"), aging_ms=5_000)
    shop.ask("b", priority=-10)
    for _ in range(400):
        shop.ask("a")
    shop.ask("b", priority=-10)
    for _ in range(45):
        shop.second(lambda _: 100)
    begin = len(shop.order)
    for _ in range(100):
        shop.ask("b")
    for _ in range(100):
        shop.second(lambda _: 100)
    back = shop.order[begin:]
    for end in range(2, len(back)):
        assert abs(2 * back[:end].count("b") - end) <= 3


def test_what_is_served_at_one_priority_is_not_paid_for_at_another() -> None:
    """Or who was alone at 0 would starve at -1, where others have waited all the time."""
    shop = Shop(Terms("a"), Terms("b"), aging_ms=1_000_000)
    for _ in range(100):
        shop.ask("a")
    shop.ask("b", priority=-1)
    for _ in range(100):
        shop.second(lambda _: 100)
    for _ in range(100):
        shop.ask("a", priority=-1)
        shop.ask("b", priority=-1)
    begin = len(shop.order)
    for _ in range(100):
        shop.second(lambda _: 100)
    back = shop.order[begin:]
    for end in range(2, len(back)):
        assert abs(2 * back[:end].count("b") - end) <= 3


_Parked = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([-9, -5, 3, 4]), st.integers(0, 500)),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(_Parked, st.integers(0, 40), _Parked, st.sampled_from([0.5, 1.0, 3.0]))
def test_a_newcomer_gets_its_share_whatever_waits_at_other_priorities(
    before: list[tuple[str, int, int]],
    turns: int,
    after: list[tuple[str, int, int]],
    weight: float,
) -> None:
    """And no less: of tokens of the priority to which it comes, within one request of each."""
    shop = Shop(Terms("a"), Terms("b", weight=weight), Terms("c"), aging_ms=1_000_000)
    for _ in range(200):
        shop.ask("a")
    for tenant, priority, cost in before:
        shop.ask(tenant, priority, cost)
    for _ in range(turns):
        shop.second(lambda _: 100)
    for _ in range(100):
        shop.ask("b")
    for tenant, priority, cost in after:
        shop.ask(tenant, priority, cost)
    got = {"a": 0.0, "b": 0.0}
    for _ in range(80):
        shop.second(lambda _: 100)
        name = shop.running
        if name is not None and shop.priority[name] == 0:
            got[shop.tenant[name]] += 100
            assert abs(got["a"] - got["b"] / weight) <= 2 * (100 + 100 / weight)


def test_one_that_was_alone_does_not_wait_for_it_afterwards() -> None:
    shop = Shop(Terms("a"), Terms("b"))
    for _ in range(100):
        shop.ask("a")
        shop.second(lambda _: 100)
        shop.second(lambda _: 100)
    begin = len(shop.order)
    for tenant in "ba":
        for _ in range(20):
            shop.ask(tenant)
    for _ in range(40):
        shop.second(lambda _: 100)
    back = shop.order[begin:]
    assert abs(2 * back[:20].count("a") - 20) <= 2


def test_a_heavy_tenant_does_not_delay_a_light_one() -> None:
    """A thousand wait; one that sends one now and then waits for one that runs, no more."""
    shop = Shop(Terms("heavy"), Terms("light"), max_queued=5000)
    for _ in range(1000):
        shop.ask("heavy")
    for second in range(300):
        if second % 5 == 0:
            light = shop.ask("light")
            shop.second(lambda _: 100)
            assert shop.running == light
        else:
            shop.second(lambda _: 100)


def test_switched_off_the_rank_decides_alone() -> None:
    shop = Shop(A, B, fair_tenants=False)
    for tenant in "aaaaabbbbb":
        shop.ask(tenant)
    for _ in range(10):
        shop.second(lambda _: 100)
    assert "".join(shop.order) == "aaaaabbbbb"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-3, 3), st.integers(0, 300)),
        min_size=1,
        max_size=80,
    ),
    st.data(),
)
def test_aging_bounds_every_wait_whatever_tenants_do(
    arrivals: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """gateway-api-inference-extension#1861: under strict priority the rest starved.

    A request of priority p is passed by none of priority q that came (q - p) times aging after it.
    """
    shop = Shop(Terms("a"), Terms("b", weight=5.0), Terms("c", weight=0.1))
    came: dict[str, tuple[int, int]] = {}
    waiting: list[str] = []
    for tenant, priority, cost in [*arrivals, *[("", 0, 0)] * len(arrivals)]:
        before = len(shop.order)
        if tenant:
            now = round(shop.clock() * 1000)
            name = shop.ask(tenant, priority, cost)
            came[name] = (priority, now)
            waiting.append(name)
        if len(shop.order) == before and data.draw(st.booleans()):
            shop.second(lambda _: 50)
        if len(shop.order) > before and shop.running is not None:
            waiting.remove(shop.running)
            priority, at = came[shop.running]
            for other in waiting:
                theirs, earlier = came[other]
                if priority != theirs:
                    assert at - earlier <= (priority - theirs) * AGING_MS


def test_who_was_served_little_passes_no_other_priority_for_it() -> None:
    """Or a request of priority 1 would wait for one of priority 0 that came long after it."""
    shop = Shop(Terms("a"), Terms("b"))
    shop.ask("a", cost=1000)
    shop.ask("a", priority=0, arrival=0)
    urgent = shop.ask("a", priority=1, arrival=1_500)  # ranks as one of priority 0 from 0.5 s
    shop.ask("b", priority=0, arrival=9_000)
    shop.core.served({("a", 0): 1000})
    order = []
    for _ in range(3):
        shop.second()
        order.append(shop.running)
    assert order[1] == urgent


def test_a_low_one_starts_in_time_though_another_tenant_sends_urgent_ones_for_ever() -> None:
    shop = Shop(Terms("a", weight=0.01), Terms("b", weight=100.0))
    shop.ask("b", priority=10)
    for _ in range(20):
        shop.ask("a", cost=10_000)  # far ahead of its share
        shop.ask("b", priority=10)
    patient = [name for name in shop.tenant if name.startswith("a")]
    for second in range(60):
        shop.ask("b", priority=10)
        shop.second(lambda _: 1)
        if shop.running in patient:
            # Those that came within ten levels' worth of waiting go first, and no others.
            assert second <= 10 + 21
            return
    raise AssertionError("it starves")


def test_a_placement_that_comes_back_is_not_charged() -> None:
    core = make_core(FakeReplica("r"), config=RouterConfig(tenants=(A, B)))
    one = replace(ticket("x"), tenant="a", cost=70)
    for _ in range(3):
        core.acquire(one)  # asked for again, since the connection broke
    queue = core._queue
    assert isinstance(queue, FairQueue)
    assert queue.virtual("a", 0) == 70
    core.bounced("x")
    assert queue.virtual("a", 0) == 0


def test_tokens_that_are_counted_may_let_another_go_first() -> None:
    """The head waits for room; by the time its turn has passed, another fits."""
    replica = FakeReplica("r")
    core = make_core(replica, config=RouterConfig(lookahead=0, tenants=(A, B)))
    core.acquire(replace(ticket("running", 60), tenant="b"))
    core.acquire(replace(ticket("large", 90), tenant="b"))
    core.acquire(replace(ticket("small", 40), tenant="a"))
    assert where(core.served({("b", 0): 500})) == {"small": "r"}


def test_gauges_tell_each_tenants_part_and_each_priority() -> None:
    clock = FakeClock()
    terms = (Terms("a", 1.0, 5, 60), Terms("b", 3.0), Terms("c"))
    core = make_core(FakeReplica("r"), config=RouterConfig(lookahead=0, tenants=terms), clock=clock)
    core.acquire(replace(ticket("1", 100), tenant="a", cost=30))
    core.acquire(replace(ticket("2", 10, priority=2), tenant="b", cost=30))
    clock.now += 2.0
    core.acquire(replace(ticket("3", 10, priority=2), tenant="b"))
    core.acquire(replace(ticket("4", 10, priority=-1), tenant="a"))
    core.served({("a", 0): 12})
    gauges = core.gauges()
    by_priority = [(one.priority, one.queued, one.oldest_wait_s) for one in gauges.by_priority]
    assert by_priority == [(2, 2, pytest.approx(2.0)), (-1, 1, pytest.approx(0.0))]
    a, b, c = gauges.by_tenant
    assert (a.tenant, a.weight, a.share, a.queued, a.in_flight) == ("a", 1.0, 0.25, 1, 2)
    assert (a.max_in_flight, a.tokens_per_minute, a.tokens_total) == (5, 60, 42)
    assert (b.share, b.queued, b.in_flight, b.tokens_total) == (0.75, 2, 2, 30)
    assert (c.share, c.queued, c.in_flight) == (0.0, 0, 0)
    assert RouterCore(RouterConfig(), clock, None).gauges().by_tenant == ()  # type: ignore[arg-type]

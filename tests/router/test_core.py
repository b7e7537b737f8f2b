"""Where requests go: the faults that users of such routers reported, as small cases."""

from collections import Counter
from random import Random

from router.core import RouterConfig
from router.errors import RouterError
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    pair,
    ticket,
    where,
)

# Spreading


def test_a_burst_between_two_reports_does_not_herd() -> None:
    replicas = pair()
    core = make_core(*replicas.values())
    for i in range(40):
        for ticket_id, name in where(core.acquire(ticket(str(i), 5))).items():
            assert replicas[name].submit(ticket_id, 5), "QueueFull"
    assert grants(core) == {"a": 20, "b": 20}


def test_one_huge_request_counts_as_much_as_it_holds() -> None:
    core = make_core(*(FakeReplica(name, total=1000) for name in ("a", "b")))
    huge = where(core.acquire(ticket("huge", 500)))["huge"]
    small = [where(core.acquire(ticket(str(i), 10)))[str(i)] for i in range(20)]
    assert huge not in small


def test_equal_replicas_are_all_used_by_requests_that_come_one_by_one() -> None:
    core = make_core(*(FakeReplica(str(i)) for i in range(5)))
    used = Counter[str]()
    for i in range(50):
        used.update(where(core.acquire(ticket(str(i)))).values())
        core.release(str(i), finished=True)
    assert set(used.values()) == {10}


def test_ties_go_to_fewer_grants() -> None:
    core = make_core(FakeReplica("a"), FakeReplica("b"))
    for ticket_id, blocks in (("one", 10), ("two", 5), ("three", 5)):
        core.acquire(ticket(ticket_id, blocks))
    core.release("one")
    assert where(core.acquire(ticket("one", 10))) == {"one": "a"}  # so b is next in the round
    assert free_blocks(core) == {"a": 90, "b": 90}
    assert grants(core) == {"a": 1, "b": 2}
    assert where(core.acquire(ticket("next", 1))) == {"next": "a"}


def test_sixty_at_once_from_two_gateways_spread_over_three_replicas() -> None:
    replicas = {name: FakeReplica(name) for name in ("a", "b", "c")}
    core = make_core(*replicas.values())
    used = Counter[str]()
    for i in range(30):
        for gateway in ("g1", "g2"):
            key = f"{gateway}-{i}"
            name = where(core.acquire(ticket(key, 2 + i % 3, priority=i % 2)))[key]
            replicas[name].submit(key, 2 + i % 3)
            used[name] += 1
            if i % 4 == 0:
                core.report(replicas[name].report())
    assert max(used.values()) - min(used.values()) <= 2


# What stays charged


def test_a_prefill_of_six_minutes_stays_charged() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, clock=clock)
    core.acquire(ticket("long", 80))
    for _ in range(360):
        clock.now += 1.0
        core.report(a.report())
        core.report(b.report())
    assert free_blocks(core) == {"a": 20, "b": 100}


def test_streams_are_charged_to_their_last_token() -> None:
    replica = FakeReplica("a")
    core = make_core(replica, config=RouterConfig(lookahead=0))
    for i in range(10):
        core.acquire(ticket(str(i), 10))
        replica.submit(str(i), 10)
    replica.step()
    for _ in range(5):  # headers and tokens have long gone out
        core.report(replica.report())
        assert free_blocks(core) == {"a": 0}
        assert grants(core) == {"a": 10}
    assert core.acquire(ticket("next", 10)) == []
    replica.end("3")
    assert where(core.report(replica.report())) == {"next": "a"}


def test_five_hundred_cancels_at_every_point_leave_no_grant() -> None:
    replica = FakeReplica("a", total=60)
    core = make_core(replica, config=RouterConfig(max_queued=500))
    rng = Random(3)
    for i in range(500):
        key = str(i)
        placed = key in where(core.acquire(ticket(key, rng.randint(1, 9), priority=i % 3)))
        point = rng.randrange(6)
        if placed and point > 0:
            replica.submit(key, 5)
        if placed and point > 1:
            replica.step()
        if point > 2:
            core.report(replica.report())
        if placed and point > 3:
            replica.end(key)
        if point > 4:
            core.report(replica.report())
        replica.end(key)
        core.release(key, finished=point == 4)
        core.release(key)
    for key in replica.held:
        replica.end(key)
    core.report(replica.report())
    gauges = core.gauges()
    assert gauges.queued == 0
    assert gauges.replicas[0].grants == 0
    assert free_blocks(core) == {"a": 60}


# Refusals


def test_refusals_never_count_against_a_replica() -> None:
    replica = FakeReplica("a")
    core = make_core(replica)
    for i in range(20):
        assert where(core.acquire(ticket(f"full{i}"))) == {f"full{i}": "a"}
        assert core.bounced(f"full{i}") == []
        assert where(core.report(replica.report())) == {f"full{i}": "a"}
        core.release(f"full{i}")
        core.acquire(ticket(f"bad{i}"))
        core.release(f"bad{i}")
    assert core.gauges().replicas[0].open
    assert free_blocks(core) == {"a": 100}


def test_a_replica_that_said_queue_full_gets_nothing_before_its_next_report() -> None:
    replicas = pair()
    core = make_core(*replicas.values())
    old = replicas["a"].report()
    core.report(replicas["a"].report())
    assert where(core.acquire(ticket("x"))) == {"x": "a"}
    assert where(core.bounced("x")) == {"x": "b"}
    assert set(where(core.acquire(ticket("y"))).values()) == {"b"}
    core.report(old)  # older than the QueueFull
    core.report(replicas["b"].report())
    assert set(where(core.acquire(ticket("z"))).values()) == {"b"}
    core.report(replicas["a"].report())
    assert set(where(core.acquire(ticket("w"))).values()) == {"a"}


# The rest


def test_the_same_calls_get_the_same_answers() -> None:
    def script() -> list[object]:
        clock, rng = FakeClock(), Random(5)
        replicas = {str(i): FakeReplica(str(i), total=rng.randint(20, 60)) for i in range(7)}
        config = RouterConfig(max_queued=10)
        core = make_core(*replicas.values(), config=config, clock=clock, seed=9)
        answers: list[object] = []
        for i in range(600):
            clock.now += rng.random()
            name = str(rng.randrange(7))
            try:
                answers += core.acquire(ticket(str(i), rng.randint(1, 15), priority=i % 4))
            except RouterError as error:
                answers.append((type(error), error.args))
            answers += core.report(replicas[name].report())
            answers += core.release(str(rng.randrange(i + 1)), finished=i % 2 == 0)
        return answers

    assert script() == script()


def test_a_thousand_replicas_take_a_burst_evenly_and_fast() -> None:
    core = make_core(*(FakeReplica(str(i), total=400) for i in range(1000)))
    for i in range(20_000):
        core.acquire(ticket(str(i), 5))
    assert set(grants(core).values()) == {20}

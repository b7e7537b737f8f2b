"""Every order in which grants, reports, releases and losses can meet."""

from dataclasses import replace

import pytest

from router.core import RouterCore
from tests.router.fake_cluster import FakeReplica, free_blocks, grants, make_core, ticket, where


@pytest.fixture
def replica() -> FakeReplica:
    return FakeReplica("a")


@pytest.fixture
def core(replica: FakeReplica) -> RouterCore:
    return make_core(replica)


def _start(core: RouterCore, replica: FakeReplica, ticket_id: str, blocks: int = 10) -> None:
    assert where(core.acquire(ticket(ticket_id, blocks))) == {ticket_id: "a"}
    assert replica.submit(ticket_id, blocks)


def test_a_grant_moves_from_the_charge_into_the_figures(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    assert free_blocks(core) == {"a": 90}
    core.report(replica.report())  # it waits there
    assert free_blocks(core) == {"a": 90}
    replica.step()
    core.report(replica.report())  # it runs there
    assert free_blocks(core) == {"a": 90}
    replica.end("x")
    core.report(replica.report())
    assert free_blocks(core) == {"a": 100}
    assert grants(core) == {"a": 0}


def test_a_report_made_before_the_submit_does_not_lift_the_charge(
    core: RouterCore, replica: FakeReplica
) -> None:
    core.acquire(ticket("x", 10))
    core.report(replica.report())
    core.report(replica.report(full=True))
    assert free_blocks(core) == {"a": 90}


def test_begun_and_ended_between_two_reports(core: RouterCore, replica: FakeReplica) -> None:
    _start(core, replica, "x")
    replica.end("x")
    core.report(replica.report())
    assert free_blocks(core) == {"a": 100}
    core.release("x", finished=True)
    assert free_blocks(core) == {"a": 100}


def test_released_before_the_report_that_names_it(core: RouterCore, replica: FakeReplica) -> None:
    _start(core, replica, "x")
    replica.step()
    late = replica.report()
    replica.end("x")
    core.release("x", finished=True)
    assert free_blocks(core) == {"a": 100}
    core.report(late)  # x is in its figures, so it must not be charged as well
    assert free_blocks(core) == {"a": 90}
    assert grants(core) == {"a": 0}
    core.report(replica.report())
    assert free_blocks(core) == {"a": 100}


def test_an_end_that_the_gateway_saw_first_is_believed_once(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    replica.step()
    core.report(replica.report())
    replica.end("x")
    core.release("x", finished=True)
    assert free_blocks(core) == {"a": 100}
    core.release("x", finished=True)
    assert free_blocks(core) == {"a": 100}
    core.report(replica.report())
    assert free_blocks(core) == {"a": 100}


def test_a_cancelled_request_keeps_its_blocks_until_the_replica_says_otherwise(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    replica.step()
    core.report(replica.report())
    core.release("x")
    assert free_blocks(core) == {"a": 90}
    replica.end("x")
    core.report(replica.report())
    assert free_blocks(core) == {"a": 100}


def test_reports_that_overtake_each_other_lose_no_id(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    replica.step()
    first = replica.report()
    _start(core, replica, "y")
    second = replica.report()
    core.report(second)
    assert free_blocks(core) == {"a": 70}  # x twice until the report that names it: careful
    core.report(first)
    assert free_blocks(core) == {"a": 80}
    replica.end("x")
    replica.end("y")
    core.report(replica.report())
    assert free_blocks(core) == {"a": 100}
    assert grants(core) == {"a": 0}


def test_the_figures_of_an_old_report_do_not_come_back(
    core: RouterCore, replica: FakeReplica
) -> None:
    old = replica.report()
    _start(core, replica, "x", 60)
    replica.step()
    core.report(replica.report())
    core.report(old)
    core.report(replace(old, admitted=("x",)))
    assert free_blocks(core) == {"a": 40}


def test_a_report_that_comes_twice_changes_nothing(core: RouterCore, replica: FakeReplica) -> None:
    _start(core, replica, "x")
    _start(core, replica, "y")
    replica.end("x")
    report = replica.report()
    for _ in range(3):
        core.report(report)
        assert free_blocks(core) == {"a": 90}
        assert grants(core) == {"a": 1}


def test_a_report_that_never_comes_is_made_good_by_a_full_one(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    _start(core, replica, "y")
    core.report(replica.report())
    assert not core.wants_full_report("a")
    _start(core, replica, "z")
    replica.end("x")
    replica.step()
    replica.report()  # lost on its way: names z admitted and x ended
    core.report(replica.report())
    assert core.wants_full_report("a")
    assert free_blocks(core) == {"a": 70}  # y, z, and z once more: careful
    core.report(replica.report(full=True))
    assert not core.wants_full_report("a")
    assert free_blocks(core) == {"a": 80}
    assert grants(core) == {"a": 2}


def test_with_a_report_missing_an_end_seen_by_the_gateway_is_not_credited(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    core.report(replica.report())
    replica.end("x")
    replica.report()  # lost on its way: names x ended
    core.report(replica.report())  # its figures no longer count x
    core.release("x", finished=True)
    assert free_blocks(core) == {"a": 100}


def test_an_old_full_list_ends_nothing_that_began_after_it(
    core: RouterCore, replica: FakeReplica
) -> None:
    old = replica.report(full=True)
    _start(core, replica, "x")
    core.report(replica.report(full=True))
    core.report(old)
    assert grants(core) == {"a": 1}
    assert core.lost("a").tickets == ("x",)


def test_late_news_of_a_replica_that_was_lost_changes_nothing(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    late = replica.report()
    assert core.lost("a").tickets == ("x",)
    core.report(late)
    core.report(replica.report())
    assert core.gauges().replicas == ()
    assert core.wants_full_report("a")


def test_a_replica_lost_by_mistake_comes_back_with_all_it_holds(
    core: RouterCore, replica: FakeReplica
) -> None:
    _start(core, replica, "x")
    _start(core, replica, "y")
    core.report(replica.report())
    assert core.lost("a").tickets == ("x", "y")
    core.report(replica.report(full=True))
    assert free_blocks(core) == {"a": 80}
    assert grants(core) == {"a": 2}
    replica.end("x")
    core.report(replica.report())
    assert grants(core) == {"a": 1}


def test_a_report_speaks_for_its_own_replica_alone() -> None:
    a, b = FakeReplica("a"), FakeReplica("b", total=90)
    core = make_core(a, b)
    _start(core, a, "x")
    core.report(a.report())
    core.lost("a")
    assert where(core.acquire(ticket("x", 10, again=True))) == {"x": "b"}
    core.report(a.report(full=True))  # it was a mistake: a still holds x
    assert grants(core) == {"a": 0, "b": 1}
    a.end("x")
    core.report(a.report())
    assert free_blocks(core) == {"a": 100, "b": 80}
    core.release("x")
    assert free_blocks(core) == {"a": 100, "b": 90}


def test_a_full_report_does_not_bring_in_what_waits_in_the_queue() -> None:
    a, b = FakeReplica("a", max_waiting=1), FakeReplica("b", max_waiting=1)
    core = make_core(a, b)
    _start(core, a, "x")
    core.acquire(ticket("on-b", 10))
    core.lost("a")
    assert core.acquire(ticket("x", 10, again=True)) == []
    core.report(a.report(full=True))  # it was a mistake: a still keeps x waiting, so it is closed
    assert grants(core) == {"a": 0, "b": 1}
    assert core.gauges().queued == 1
    core.release("x")
    assert grants(core) == {"a": 0, "b": 1}
    assert core.gauges().queued == 0


def test_a_new_router_knows_again_what_is_held() -> None:
    a, b = FakeReplica("a"), FakeReplica("b")
    old = make_core(a, b)
    for i in range(6):
        home = where(old.acquire(ticket(str(i), 10)))[str(i)]
        (a if home == "a" else b).submit(str(i), 10)
    core = make_core()
    a.step()
    assert core.wants_full_report("a")
    core.report(a.report(full=True))
    core.report(b.report(full=True))
    assert free_blocks(core) == {"a": 70, "b": 70}
    assert grants(core) == {"a": 3, "b": 3}
    for replica in (a, b):
        for ticket_id in replica.held:
            replica.end(ticket_id)
        core.report(replica.report())
    assert free_blocks(core) == {"a": 100, "b": 100}
    assert grants(core) == {"a": 0, "b": 0}


def test_a_router_that_joins_in_the_middle_asks_for_a_full_report() -> None:
    replica = FakeReplica("a")
    replica.report()
    replica.submit("x", 10)
    core = make_core()
    core.report(replica.report())
    assert free_blocks(core) == {"a": 90}
    assert core.wants_full_report("a")


def test_the_memory_of_losses_is_bounded() -> None:
    core = make_core()
    for i in range(3_000):
        core.report(FakeReplica(str(i)).report())
        core.lost(str(i))
    assert len(core._ledger._lost._last_seq) <= 1024

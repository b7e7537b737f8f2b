"""Tickets that fit nowhere, placed where they preempt, and everything that forbids it."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.rank import SchedPolicy
from router.core import RouterConfig, RouterCore
from router.errors import Busy
from router.policy import Fleet, MostFreeBlocks
from router.ticket import Ticket
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    run,
    ticket,
    where,
)

ON = RouterConfig(lookahead=0, admission_preemption=2)


def _full(config: RouterConfig = ON, *, seats: int = 64) -> tuple[RouterCore, FakeReplica]:
    """One replica whose 100 blocks two requests of priority 0 hold."""
    replica = FakeReplica("a", max_seqs=seats)
    core = make_core(replica, config=config)
    for name in ("low1", "low2"):
        run(core, replica, name, 50)
    return core, replica


def test_an_urgent_ticket_that_fits_nowhere_goes_where_it_preempts() -> None:
    core, _ = _full()
    assert core.acquire(ticket("same", 50)) == []
    assert where(core.acquire(ticket("urgent", 50, priority=2))) == {"urgent": "a"}
    assert free_blocks(core) == {"a": -50}
    assert grants(core) == {"a": 3}
    core.release("urgent")
    assert free_blocks(core) == {"a": 0}


def test_it_is_off_unless_it_is_set() -> None:
    core, _ = _full(replace(ON, admission_preemption=0))
    assert core.acquire(ticket("urgent", 50, priority=100)) == []


@pytest.mark.parametrize(("priority", "placed"), [(1, False), (2, True)])
def test_the_difference_must_be_as_many_levels_as_are_set(priority: int, placed: bool) -> None:
    core, _ = _full()
    assert bool(core.acquire(ticket("urgent", 50, priority=priority))) is placed


@pytest.mark.parametrize(("arrival", "placed"), [(9_999, True), (10_001, False)])
def test_nobody_preempts_whom_it_does_not_outrank(arrival: int, placed: bool) -> None:
    core, _ = _full()  # two levels are worth 10 s
    assert bool(core.acquire(ticket("urgent", 50, priority=2, arrival=arrival))) is placed


def test_fcfs_preempts_nobody() -> None:
    core, _ = _full(replace(ON, policy=SchedPolicy.FCFS))
    assert core.acquire(ticket("urgent", 50, priority=9, arrival=-5)) == []


def test_where_it_fits_comes_first() -> None:
    core, _ = _full()
    core.report(FakeReplica("b").report())
    assert where(core.acquire(ticket("urgent", 50, priority=9))) == {"urgent": "b"}


def test_lookahead_comes_first_too() -> None:
    core, _ = _full(replace(ON, lookahead=1))
    assert where(core.acquire(ticket("low3", 50))) == {"low3": "a"}
    assert not core._ledger._accounts["a"].charged["low3"].preempting


@pytest.mark.parametrize(("blocks", "placed"), [(100, True), (101, False)])
def test_what_the_victims_hold_and_what_is_free_must_suffice(blocks: int, placed: bool) -> None:
    core, replica = _full()
    replica.total = 130
    run(core, replica, "high", 30, priority=9)  # never a victim
    assert bool(core.acquire(ticket("urgent", blocks, priority=2))) is placed


def test_free_blocks_count_with_those_of_the_victims() -> None:
    replica = FakeReplica("a")
    core = make_core(replica, config=ON)
    run(core, replica, "low", 60)
    assert where(core.acquire(ticket("urgent", 90, priority=2))) == {"urgent": "a"}


def test_a_seat_alone_is_preempted_for() -> None:
    replica = FakeReplica("a", max_seqs=2)
    core = make_core(replica, config=ON)
    run(core, replica, "low", 1)
    run(core, replica, "high", 1, priority=9)
    assert where(core.acquire(ticket("urgent", 1, priority=2))) == {"urgent": "a"}


def test_seats_that_others_wait_for_are_not_the_victims_to_give() -> None:
    replica = FakeReplica("a", max_seqs=1)
    core = make_core(replica, config=ON)
    run(core, replica, "low", 1)
    replica.waiting["unknown"] = 1
    core.report(replica.report())
    assert core.acquire(ticket("urgent", 1, priority=2)) == []
    del replica.waiting["unknown"]
    assert where(core.report(replica.report())) == {"urgent": "a"}


def test_the_longest_it_can_get_must_fit_into_the_pool() -> None:
    core, _ = _full()
    core.report(FakeReplica("large", total=200, max_waiting=0).report())
    assert core.acquire(ticket("urgent", 50, most=101, priority=2)) == []
    core.release("urgent")
    assert where(core.acquire(ticket("urgent", 50, most=100, priority=2))) == {"urgent": "a"}


def test_one_at_a_time_until_a_report_names_it() -> None:
    core, replica = _full()
    assert where(core.acquire(ticket("u1", 20, priority=2))) == {"u1": "a"}
    assert core.acquire(ticket("u2", 20, priority=2)) == []
    assert core.report(replica.report()) == []  # made before u1 came
    replica.submit("u1", 20)
    assert where(core.report(replica.report())) == {"u2": "a"}


def test_replicas_that_are_closed_leaving_or_suspect_are_left_alone() -> None:
    for wrong in ("closed", "leaving", "silent", "unreachable"):
        clock = FakeClock()
        replica = FakeReplica("a")
        core = make_core(replica, config=ON, clock=clock)
        run(core, replica, "low", 100)
        if wrong == "closed":
            assert where(core.acquire(ticket("u0", 50, priority=2))) == {"u0": "a"}
            assert core.bounced("u0") == []
            core.release("u0")
        elif wrong == "leaving":
            replica.leaving = True
            core.report(replica.report())
        elif wrong == "silent":
            clock.now += 3.0
        else:
            core.unreachable("a")
        assert core.acquire(ticket("urgent", 50, priority=2)) == [], wrong
        replica.leaving = False
        assert where(core.report(replica.report())) == {"urgent": "a"}, wrong


def test_the_lowest_ranked_of_all_replicas_is_the_victim() -> None:
    a, b, c = (FakeReplica(name) for name in "abc")
    core = make_core(a, b, c, config=replace(ON, admission_preemption=1))
    for replica, priority in ((a, 1), (b, 0), (c, 1)):
        run(core, replica, f"on-{replica.name}", 100, priority=priority)
    placed = [where(core.acquire(ticket(f"u{i}", 50, priority=2))) for i in range(4)]
    assert placed == [{"u0": "b"}, {"u1": "c"}, {"u2": "a"}, {}]  # c came after a


def test_grants_known_from_a_report_alone_are_nobodys_victims() -> None:
    replica = FakeReplica("a")
    replica.report()
    replica.submit("unknown", 100)
    replica.step()
    core = make_core(config=ON)
    core.report(replica.report(full=True))
    assert core.acquire(ticket("urgent", 50, priority=9)) == []


def test_a_full_queue_does_not_refuse_who_preempts_at_once() -> None:
    core, _ = _full(replace(ON, max_queued=0))
    with pytest.raises(Busy):
        core.acquire(ticket("same", 50))
    assert where(core.acquire(ticket("urgent", 50, priority=2))) == {"urgent": "a"}


def test_only_the_first_of_the_queue_preempts() -> None:
    core, _ = _full()
    core.report(FakeReplica("large", total=200, max_waiting=0).report())
    assert core.acquire(ticket("head", 150, priority=9)) == []
    assert core.acquire(ticket("behind", 50, priority=5)) == []
    assert where(core.release("head")) == {"behind": "a"}


class Sent:
    """Places on the replica that the test names, else as usual."""

    to: str | None = None

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        if self.to is None:
            return MostFreeBlocks().choose(ticket, fleet)
        return self.to if fleet.takes(self.to, ticket) else None


@dataclass(frozen=True)
class Load:
    """A request that the test places.

    Attributes:
        replica, blocks, priority: where it goes, what it needs, how urgent it is.
        named: a report names it.
    """

    replica: str
    blocks: int
    priority: int
    named: bool


_Loads = st.lists(
    st.builds(Load, st.sampled_from("ab"), st.integers(2, 5), st.integers(0, 3), st.booleans()),
    min_size=8,
    max_size=16,
)


@settings(max_examples=300, deadline=None)
@given(_Loads, st.integers(0, 2), st.integers(3, 8), st.integers(1, 5), st.integers(1, 2))
def test_the_choice_is_that_of_one_who_looks_at_everything(
    loads: list[Load], lookahead: int, blocks: int, priority: int, levels: int
) -> None:
    replicas = {name: FakeReplica(name, total=8, max_seqs=3) for name in "ab"}
    config = RouterConfig(lookahead=lookahead, admission_preemption=levels)
    sent = Sent()
    core = make_core(*replicas.values(), config=config, placement=sent)
    placed: list[Load] = []  # by rank: the most urgent came first, so that none preempts another
    for load in sorted(loads, key=lambda load: -load.priority):
        sent.to, name = load.replica, str(len(placed))
        if not core.acquire(ticket(name, load.blocks, priority=load.priority)):
            core.release(name)
            continue
        placed.append(load)
        if load.named:
            replicas[load.replica].submit(name, load.blocks)
    for replica in replicas.values():
        replica.step()
        core.report(replica.report())
    sent.to = None
    urgent = ticket("urgent", blocks, priority=priority)
    if any(core._ledger.takes(name, urgent) for name in replicas):
        return
    lowest: dict[str, int] = {}
    for name in replicas:
        here = [(i, load) for i, load in enumerate(placed) if load.replica == name]
        kept = [load for _, load in here if load.priority > priority - levels]
        enough = sum(load.blocks for load in kept) + blocks <= 8 and len(kept) < 3
        if len(kept) < len(here) and enough:
            lowest[name] = here[-1][0]
    expected = {"urgent": max(lowest, key=lowest.__getitem__)} if lowest else {}
    assert where(core.acquire(urgent)) == expected

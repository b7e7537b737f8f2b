"""What one replica takes: blocks, seats, its own queue, and the lookahead."""

import pytest

from router.core import RouterConfig
from tests.router.fake_cluster import FakeReplica, free_blocks, grants, make_core, ticket, where


def _placed(replica: FakeReplica, *, lookahead: int, blocks: int, count: int = 40) -> int:
    core = make_core(replica, config=RouterConfig(lookahead=lookahead))
    return sum(len(core.acquire(ticket(str(i), blocks))) for i in range(count))


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
def test_lookahead_counts_what_is_beyond_the_blocks(lookahead: int) -> None:
    assert _placed(FakeReplica("a", total=103), lookahead=lookahead, blocks=10) == 10 + lookahead


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
def test_lookahead_counts_what_is_beyond_the_seats(lookahead: int) -> None:
    replica = FakeReplica("a", total=1000, max_seqs=4)
    assert _placed(replica, lookahead=lookahead, blocks=1) == 4 + lookahead


@pytest.mark.parametrize("seats", [4, 64])
def test_what_waits_on_the_replica_uses_up_the_lookahead(seats: int) -> None:
    replica = FakeReplica("a", total=40, max_seqs=seats)
    core = make_core(replica, config=RouterConfig(lookahead=2))
    for i in range(10):
        for ticket_id in where(core.acquire(ticket(str(i), 10))):
            replica.submit(ticket_id, 10)
    assert grants(core) == {"a": 6}
    for _ in range(3):
        replica.step()
        assert core.report(replica.report()) == []
    replica.end("0")
    replica.step()
    assert where(core.report(replica.report())) == {"6": "a"}


def test_a_released_lookahead_makes_room_for_the_next() -> None:
    core = make_core(FakeReplica("a", total=20), config=RouterConfig(lookahead=1))
    for i in range(5):
        core.acquire(ticket(str(i), 10))
    assert grants(core) == {"a": 3}
    assert where(core.release("2")) == {"3": "a"}
    assert where(core.release("0")) == {"4": "a"}  # 3 fits now, 4 is the lookahead


def test_blocks_that_its_own_queue_needs_are_not_free() -> None:
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b)
    a.running["big"] = 50
    a.waiting["bigger"] = 60
    b.running["big"] = 95
    core.report(a.report())
    core.report(b.report())
    assert free_blocks(core) == {"a": -10, "b": 5}
    assert where(core.acquire(ticket("x", 5))) == {"x": "b"}


def test_a_burst_between_two_steps_does_not_overrun_a_short_queue() -> None:
    replicas = {name: FakeReplica(name, max_waiting=3) for name in ("a", "b")}
    core = make_core(*replicas.values())
    for i in range(20):
        for ticket_id, name in where(core.acquire(ticket(str(i), 5))).items():
            assert replicas[name].submit(ticket_id, 5), "QueueFull"
    assert grants(core) == {"a": 3, "b": 3}


def test_a_replica_whose_queue_is_at_its_limit_is_closed() -> None:
    replica = FakeReplica("a", max_waiting=2)
    core = make_core(replica)
    replica.waiting.update({"p": 1, "q": 1})
    core.report(replica.report())
    assert not core.gauges().replicas[0].open
    assert core.acquire(ticket("x", 5)) == []
    replica.step()
    assert where(core.report(replica.report())) == {"x": "a"}


def test_who_waits_on_the_replica_has_a_claim_on_a_seat() -> None:
    replica = FakeReplica("a", max_seqs=3)
    core = make_core(replica, config=RouterConfig(lookahead=0))
    replica.running["p"] = 1
    replica.waiting.update({"q": 1, "r": 1})
    core.report(replica.report())
    assert core.acquire(ticket("x", 5)) == []
    replica.end("p")
    assert where(core.report(replica.report())) == {"x": "a"}


def test_full_seats_send_the_next_to_a_replica_with_fewer_blocks() -> None:
    a, b = FakeReplica("a", total=1000, max_seqs=1), FakeReplica("b", total=1000)
    core = make_core(a, b)
    a.running["p"] = 1
    b.running["q"] = 500
    core.report(a.report())
    core.report(b.report())
    assert where(core.acquire(ticket("x", 5))) == {"x": "b"}


def test_pools_of_different_sizes_get_only_what_fits_into_them() -> None:
    small, large = FakeReplica("small", total=50), FakeReplica("large", total=100)
    core = make_core(small, large, config=RouterConfig(lookahead=1))
    large.running["p"] = 90
    core.report(large.report())
    assert where(core.acquire(ticket("x", 40, most=60))) == {"x": "large"}  # as lookahead
    assert core.acquire(ticket("y", 40, most=60)) == []
    large.end("p")
    assert where(core.report(large.report())) == {"y": "large"}

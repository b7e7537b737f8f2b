from router.policy import Fleet
from router.ticket import Ticket
from tests.router.fake_cluster import FakeReplica, make_core, ticket, where


class Favourite:
    """Takes one replica while that takes the ticket."""

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        freest = fleet.freest(ticket)
        if fleet.takes("b", ticket) and fleet.free_blocks("b") > 50:
            return "b"
        return freest


def test_another_policy_can_be_put_in_and_sees_what_was_charged_a_moment_ago() -> None:
    core = make_core(FakeReplica("a"), FakeReplica("b"), placement=Favourite())
    chosen = [where(core.acquire(ticket(str(i), 10)))[str(i)] for i in range(8)]
    assert chosen == ["b", "b", "b", "b", "b", "a", "a", "a"]


class Recorder:
    """Takes the freest replica and notes what it sees of the fleet."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[str, ...], list[int]]] = []

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        names = fleet.replicas
        self.seen.append((names, [fleet.requests(name) for name in names]))
        return fleet.freest(ticket)


def test_a_policy_sees_the_replicas_as_they_joined_and_what_each_has_to_do() -> None:
    recorder, replicas = Recorder(), {name: FakeReplica(name) for name in "cab"}
    core = make_core(*replicas.values(), placement=recorder)
    assert where(core.acquire(ticket("1", 10))) == {"1": "c"}
    assert where(core.acquire(ticket("2", 10))) == {"2": "a"}
    core.lost("a")
    core.acquire(ticket("3", 10))
    core.report(FakeReplica("d").report())
    core.release("1", finished=True)
    core.acquire(ticket("4", 10))
    assert recorder.seen == [
        (("c", "a", "b"), [0, 0, 0]),
        (("c", "a", "b"), [1, 0, 0]),
        (("c", "b"), [1, 0]),
        (("c", "b", "d"), [0, 1, 0]),
    ]

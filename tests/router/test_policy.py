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

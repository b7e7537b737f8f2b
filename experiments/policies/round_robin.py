"""RoundRobin: the replicas in turn."""

from router.policy import Fleet
from router.ticket import Ticket


class RoundRobin:
    """The next replica that takes the ticket as well as any does.

    Replicas are passed over that would take it less well: where it would wait while it fits
    elsewhere, or a suspect. So what is compared with other policies is the choice among those that
    have room, and not who runs into full ones. Costs O(replicas passed over).
    """

    def __init__(self) -> None:
        self._next = 0

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """See `router.policy.PlacementPolicy.choose`."""
        freest = fleet.freest(ticket)
        if freest is None:
            return None
        level = fleet.level(freest, ticket)
        names = fleet.replicas
        for turn in range(self._next, self._next + len(names)):
            name = names[turn % len(names)]
            if fleet.level(name, ticket) == level:
                self._next = (turn + 1) % len(names)
                return name
        return freest

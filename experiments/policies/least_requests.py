"""LeastRequests: the replica with the fewest requests."""

from router.policy import Fleet
from router.ticket import Ticket


class LeastRequests:
    """Of the replicas that take the ticket as well as any does, the one with the fewest requests.

    However long these are: it is what proxies know that do not look at memory. Of several with as
    few, the one with most free blocks if that is the freest of all, else the one that joined
    first. Costs O(replicas).
    """

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """See `router.policy.PlacementPolicy.choose`."""
        best = fleet.freest(ticket)
        if best is None:
            return None
        level, fewest = fleet.level(best, ticket), fleet.requests(best)
        for name in fleet.replicas:
            # Whether it takes the ticket costs more to find out, and matters for few.
            requests = fleet.requests(name)
            if requests < fewest and fleet.level(name, ticket) == level:
                best, fewest = name, requests
        return best

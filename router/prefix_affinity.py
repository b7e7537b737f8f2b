"""PrefixAffinity: go where the prompt's beginning is held, unless that costs more than it saves."""

from typing import Final

from router.policy import Fleet
from router.ticket import Ticket

SLACK: Final = 0.5
LAG_PER_BLOCK_SAVED: Final = 3.0


class PrefixAffinity:
    """The replica that holds the longest beginning of the prompt, if it is not too far behind.

    What is saved is the prefill of the blocks that it holds and the freest replica does not. What
    it costs is imbalance: it has less left than the freest would have, so steps there are longer
    and blocks run out sooner. Both are counted in blocks. *Lag* is what it has free less than the
    freest; blocks of the prompt that a running request holds there take no room, so they count as
    free. It is accepted up to ``worth`` times what is saved, and never beyond ``slack``.

    So conversations stay where they are, for what is cached and not in use is free; requests of
    one system prompt gather on a few replicas, on more the shorter it is; and a short one that
    everybody sends draws nobody to a busy replica.

    Only replicas that take the ticket as well as the freest does are considered: one where it fits
    comes before one where it would wait, and one that is trusted before a suspect, whatever they
    hold. Of several with the longest match, the one with most left is chosen.
    """

    __slots__ = ("_slack", "_worth")

    def __init__(self, slack: float = SLACK, worth: float = LAG_PER_BLOCK_SAVED) -> None:
        """Choose by prefix.

        Args:
            slack: the most lag that is accepted, as a share of the freest replica's pool, >= 0.
            worth: blocks of lag that are accepted for each block saved, >= 0.

        Raises:
            ValueError: one of them is negative.
        """
        for name, value in (("slack", slack), ("worth", worth)):
            if not value >= 0:
                raise ValueError(f"{name} {value} is negative")
        self._slack = slack
        self._worth = worth

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """See `router.policy.PlacementPolicy.choose`; costs O(prefix) beside `Fleet.freest`."""
        freest = fleet.freest(ticket)
        if freest is None or not ticket.prefix:
            return freest
        held, level = fleet.held(freest, ticket), fleet.level(freest, ticket)
        room, most_lag = fleet.free_if_shared(freest), self._slack * fleet.total_blocks(freest)
        for matches in fleet.matches(ticket, above=held):
            # All of them hold as much.
            least = min(most_lag, self._worth * (matches[0].blocks - held))
            chosen = None
            for match in matches:
                lag = room - fleet.free_if_shared(match.replica) - match.in_use
                if fleet.level(match.replica, ticket) == level and (
                    lag < least or (lag == least and chosen is None)
                ):
                    chosen, least = match.replica, lag
            if chosen is not None:
                return chosen
        return freest

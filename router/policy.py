"""Placement policies: which of the replicas that could take a ticket gets it.

A policy only chooses. The core charges what it chose, in the same turn.
"""

from collections.abc import Iterator
from typing import Protocol

from router.prefix_match import Match
from router.ticket import Ticket


class Fleet(Protocol):
    """What a policy can know of the replicas; asking changes nothing.

    Each answer costs the same for any number of replicas, unless it says otherwise. Only `takes`
    may be asked about a replica that is not known; the others raise KeyError.
    """

    @property
    def replicas(self) -> tuple[str, ...]:
        """All known replicas, in the order in which they joined; whether they take anything or not.

        It changes only when one joins or is lost.
        """

    def requests(self, replica: str) -> int:
        """Requests that were placed on a known replica and have not ended, as far as is known."""

    def freest(self, ticket: Ticket) -> str | None:
        """The replica with most effective free blocks that takes the ticket, or None.

        Suspects are named only if nobody else takes the ticket. Then, where it fits comes before
        where it would wait as lookahead. Ties: fewer grants, then the one placed on least
        recently. Costs the logarithm of the number of replicas.
        """

    def takes(self, replica: str, ticket: Ticket) -> bool:
        """Whether the ticket may be placed on the replica now; False for unknown names."""

    def free_blocks(self, replica: str) -> int:
        """Effective free blocks of a known replica; may be negative."""

    def free_if_shared(self, replica: str) -> int:
        """The same if what is on its way there shares the prefixes that are in use there."""

    def total_blocks(self, replica: str) -> int:
        """Blocks of a known replica's whole pool."""

    def level(self, replica: str, ticket: Ticket) -> int | None:
        """How well a known replica takes the ticket, 0 being best; None: it does not.

        None is better than the one that `freest` names. The levels: it fits, it would wait as
        lookahead; and the same two of suspects.
        """

    def held(self, replica: str, ticket: Ticket) -> int:
        """How many blocks of the ticket's prompt the replica holds, or soon will; O(prefix)."""

    def matches(self, ticket: Ticket, above: int) -> Iterator[list[Match]]:
        """Yield replicas that hold more of the ticket's prompt than so many blocks.

        Those that hold most come first; those that hold as much come together. Costs O(prefix +
        matches taken). Whether they take the ticket is another question.
        """


class PlacementPolicy(Protocol):
    """Chooses a replica for the ticket that goes first."""

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """A replica that takes the ticket; None if, and only if, there is none.

        After None the ticket waits, and all behind it, until something changes. It is called again
        for the same ticket then, so it may be called many times for one placement.
        """


class MostFreeBlocks:
    """The replica with the most effective free blocks."""

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """See `PlacementPolicy.choose`."""
        return fleet.freest(ticket)

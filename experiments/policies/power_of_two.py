"""PowerOfTwo: the better of two replicas that are drawn at random."""

from random import Random
from typing import Final

from router.policy import Fleet
from router.ticket import Ticket

_DRAWS: Final = 8


class PowerOfTwo:
    """Of two random replicas, the one with fewer requests; of as many, with more free blocks.

    The "power of two choices" (Mitzenmacher, *The Power of Two Choices in Randomized Load
    Balancing*, IEEE TPDS 2001). Both are drawn among those that take the ticket as well as any
    does; if that is not so after a few draws, since hardly any replica takes it, there is one
    choice, or the freest replica gets it. Costs the same for any number of replicas.
    """

    def __init__(self, rng: Random) -> None:
        """Draw with ``rng``."""
        self._rng = rng

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """See `router.policy.PlacementPolicy.choose`."""
        freest = fleet.freest(ticket)
        if freest is None:
            return None
        level, names = fleet.level(freest, ticket), fleet.replicas
        drawn: list[str] = []
        for _ in range(_DRAWS):
            name = names[self._rng.randrange(len(names))]
            if name not in drawn and fleet.level(name, ticket) == level:
                drawn.append(name)
                if len(drawn) == 2:
                    break
        return min(drawn, key=lambda one: _load(one, fleet), default=freest)


def _load(replica: str, fleet: Fleet) -> tuple[int, int]:
    return fleet.requests(replica), -fleet.free_blocks(replica)

"""Guarded: a placement policy that nobody has vouched for, made safe to ask."""

from collections.abc import Callable

from router.policy import Fleet, PlacementPolicy
from router.ticket import Ticket


class Guarded:
    """Asks a policy, and takes the freest replica where its answer cannot be followed.

    What cannot be followed is an exception or an exit, a replica that is not known or does not
    take the ticket, and None while some replica takes it: the first two would break the ledger,
    the last would let requests wait with nothing to wait for. So every request is placed as soon
    as it can be, whatever the policy does, as long as it returns.

    It costs one look at the chosen replica beside the policy itself.
    """

    __slots__ = ("_mistaken", "_policy")

    def __init__(self, policy: PlacementPolicy, mistaken: Callable[[str], None]) -> None:
        """Guard a policy.

        Args:
            policy: which is asked first.
            mistaken: called with a sentence for each answer that is not followed. What it raises
                comes out of `choose`, with nothing changed.
        """
        self._policy = policy
        self._mistaken = mistaken

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        """See `router.policy.PlacementPolicy.choose`."""
        try:
            chosen: object = self._policy.choose(ticket, fleet)
        except (Exception, SystemExit) as error:
            return self._instead(f"raised {_spelled(error)}", ticket, fleet)
        if isinstance(chosen, str) and fleet.takes(chosen, ticket):
            return chosen
        if chosen is not None:
            return self._instead(f"chose {chosen!r}, which does not take the ticket", ticket, fleet)
        freest = fleet.freest(ticket)
        if freest is not None:
            self._mistaken(f"chose no replica, although {freest!r} takes the ticket")
        return freest

    def _instead(self, mistake: str, ticket: Ticket, fleet: Fleet) -> str | None:
        self._mistaken(mistake)
        return fleet.freest(ticket)


def _spelled(error: BaseException) -> str:
    """The error in one line, with the line of the policy that led to it."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:  # past the one that called the policy
        trace = trace.tb_next
    where = "" if trace is None else f" in line {trace.tb_lineno}"
    return f"{type(error).__name__}{where}: {error}"

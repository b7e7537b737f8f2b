"""Several sequences of one request: let in together, or not at all."""

from collections.abc import Sequence as Many

from deployments.dispatch import Sequence
from deployments.router_client import RouterClient


async def admit(sequences: Many[Sequence], router: RouterClient) -> None:
    """Get a place for each of the sequences, in one turn of the router; then `start` them.

    However this ends but by returning, nothing is left of them at the router. After it has
    returned each sequence has its own place to give up: one that is not started is to be dropped.

    Args:
        sequences: at least one; none was started.
        router: where they ask.

    Raises:
        Refused: there are not places for all of them.
        Failed: the same, for a reason that is none of the client's business.
    """
    call = sequences[0].key
    try:
        refusal = await router.admit([one.ticket(call) for one in sequences])
    except BaseException:
        for one in sequences:
            one.drop()
        raise
    if refusal is not None:
        errors = [one.turned_away(refusal) for one in sequences]
        raise errors[0]
    for one in sequences:
        one.admitted()

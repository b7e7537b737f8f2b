"""Several sequences of one request: let in together, or not at all."""

import asyncio
from collections.abc import Sequence as Many

from deployments.dispatch import Sequence
from deployments.messages import Refusal, RefusalKind
from deployments.order import Failed, Refused
from deployments.router_client import RouterClient


async def admit(sequences: Many[Sequence], router: RouterClient) -> None:
    """Get a place for each of the sequences, in one turn of the router; then `start` them.

    However this ends but by returning, nothing is left of them at the router. After it has
    returned each sequence has its own place to give up: one that is not started is to be dropped.

    Args:
        sequences: at least one; none was started.
        router: where they ask.

    Raises:
        Refused: there are not places for all of them, or none before their time was over.
        Failed: the same, for a reason that is none of the client's business.
    """
    call = sequences[0].key
    limit = asyncio.timeout(sequences[0].left_s)  # they have one and the same
    try:
        async with limit:
            refusal = await router.admit([one.ticket(call) for one in sequences])
    except BaseException as error:
        if isinstance(error, TimeoutError) and limit.expired():
            raise _turned_away(sequences, Refusal(RefusalKind.EXPIRED)) from None
        for one in sequences:
            one.drop()
        raise
    if refusal is not None:
        raise _turned_away(sequences, refusal)
    for one in sequences:
        one.admitted()


def _turned_away(sequences: Many[Sequence], refusal: Refusal) -> Refused | Failed:
    errors = [one.turned_away(refusal) for one in sequences]
    return errors[0]

"""Attempt: one life of a sequence, from its ticket to what the ticket led to."""

import asyncio
from dataclasses import dataclass

from deployments.calls import detached
from deployments.channel import Link, ReplicaLost
from deployments.messages import Refusal
from deployments.router_client import RouterClient
from router.ticket import Ticket


@dataclass(slots=True)
class Attempt:
    """A ticket, and what it led to.

    Attributes:
        ticket: held at the router from the first ``place`` on, or from its admission with others.
        ended: done when the replica has sent the last event, or is lost.
        link: to the replica that was asked to take the request.
        submitting: the asking.
        taken: the replica took it.
    """

    ticket: Ticket
    ended: "asyncio.Future[None]"
    taken: bool = False
    link: Link | None = None
    submitting: "asyncio.Task[Refusal | None] | None" = None

    def give_up(self, router: RouterClient, *, finished: bool) -> None:
        """Leave nothing of it behind, here, at the replica and at the router; only once.

        Args:
            router: where the ticket is held.
            finished: the replica has ended the request by itself.
        """
        key = self.ticket.id
        if self.link is not None:
            self.link.forget(key)
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()  # it may be that nobody waited for it yet
        if self.link is None or self.submitting is None or finished:
            router.release(key, finished=finished)
        else:
            detached(_withdraw(self.link, self.submitting, key, router))


async def _withdraw(
    link: Link, submitting: "asyncio.Task[Refusal | None]", key: str, router: RouterClient
) -> None:
    """Abort a request that may still be on its way to the replica, then give its ticket up."""
    try:
        if await submitting is None:
            await link.abort((key,))
    except ReplicaLost:
        pass  # and with it the request
    finally:
        router.release(key, finished=False)

"""Pending: the questions of gateways, from the asking until the ticket is given up."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from deployments.messages import Refusal, RefusalKind
from router.errors import (
    Busy,
    Expired,
    NeverFitsAnywhere,
    NoReplica,
    TenantBusy,
    TenantRate,
    TooManyTogether,
)
from router.ticket import Decision, No, Placement

REFUSALS = (Busy, TenantBusy, TenantRate, NoReplica, NeverFitsAnywhere, TooManyTogether)
"""What a router may say to a new ticket, to be told with `refusal_of`."""


@dataclass(slots=True, eq=False)
class Call:
    """A gateway's newest question about one ticket.

    Attributes:
        gateway: who asks.
        decided: gets the answer: a replica, or why there is none.
        admitted_at: when, by any clock, its ticket was let in with others, before anybody has
            waited for the answer; None once somebody does.
    """

    gateway: str
    decided: "asyncio.Future[str | Refusal]"
    admitted_at: float | None = None

    def answer(self, answer: str | Refusal) -> None:
        """Answer, unless it has been answered or the caller has gone."""
        if not self.decided.done():
            self.decided.set_result(answer)


class Pending:
    """All tickets that were asked for and not given up, with the newest call about each.

    And those about which no call is open any more, although their owners have not given them up:
    they were lost with a replica, or placed by a router before this one.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._kept: dict[str, str] = {}  # ticket -> gateway

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._calls

    def ask(self, gateway: str, ticket: str, admitted_at: float | None = None) -> Call:
        """Note a question; an earlier one about the same ticket is void, its caller has gone."""
        before = self._calls.get(ticket)
        call = Call(gateway, asyncio.get_running_loop().create_future(), admitted_at)
        self._calls[ticket] = call
        self._kept.pop(ticket, None)
        if before is not None:
            before.answer(Refusal(RefusalKind.ABANDONED))
        return call

    def join(self, ticket: str) -> Call | None:
        """The call of a ticket that was let in with others, to wait for its answer; only once."""
        call = self._calls.get(ticket)
        if call is None or call.admitted_at is None:
            return None
        call.admitted_at = None
        return call

    def not_joined(self, before: float) -> list[str]:
        """The tickets that were let in with others before then and that nobody has joined."""
        return [
            ticket
            for ticket, call in self._calls.items()
            if call.admitted_at is not None and call.admitted_at < before
        ]

    def is_newest(self, ticket: str, call: Call) -> bool:
        """Whether nobody has asked for the ticket since."""
        return self._calls.get(ticket) is call

    def decide(self, decisions: Iterable[Decision]) -> list[str]:
        """Answer those that were decided; returns the replicas that were placed on."""
        placed = []
        for decision in decisions:
            call = self._calls.get(decision.ticket)
            if isinstance(decision, Placement):
                answer: str | Refusal = decision.replica
                placed.append(decision.replica)
            else:
                answer = refusal_of(decision.error)
                self._calls.pop(decision.ticket, None)
            if call is not None:
                call.answer(answer)
        return placed

    def give_up(self, ticket: str) -> None:
        """Forget a ticket; whoever still waits for it hears so."""
        self._kept.pop(ticket, None)
        if (call := self._calls.pop(ticket, None)) is not None:
            call.answer(Refusal(RefusalKind.ABANDONED))

    def forget(self, ticket: str) -> None:
        """Forget a ticket that nobody waits for."""
        self._calls.pop(ticket, None)

    def keep(self, gateway: str, ticket: str) -> None:
        """Note whose a ticket is about which no question is open."""
        if ticket not in self._calls:
            self._kept[ticket] = gateway

    def lose(self, ticket: str) -> None:
        """The ticket's replica is lost; it is its owner's until that gives it up."""
        if (call := self._calls.pop(ticket, None)) is not None:
            self._kept[ticket] = call.gateway

    def of(self, gateway: str) -> list[str]:
        """The tickets of a gateway, those that wait for a decision first."""
        calls = [
            (t, call.decided.done()) for t, call in self._calls.items() if call.gateway == gateway
        ]
        kept = [ticket for ticket, whose in self._kept.items() if whose == gateway]
        return [ticket for ticket, _ in sorted(calls, key=lambda item: item[1])] + kept

    @property
    def waits(self) -> bool:
        """Whether a ticket waits for a decision."""
        return any(not call.decided.done() for call in self._calls.values())


def refusal_of(error: No) -> Refusal:
    """Turn a refusal of the router into one that crosses processes."""
    if isinstance(error, Busy):
        return Refusal(
            RefusalKind.BUSY,
            retry_after=error.retry_after,
            current=error.queued,
            limit=error.limit,
        )
    if isinstance(error, NoReplica):
        return Refusal(RefusalKind.NO_REPLICA, retry_after=error.retry_after)
    if isinstance(error, Expired):
        return Refusal(RefusalKind.EXPIRED)
    if isinstance(error, NeverFitsAnywhere):
        return Refusal(RefusalKind.NEVER_FITS, current=error.blocks, limit=error.total)
    if isinstance(error, TooManyTogether):
        return Refusal(RefusalKind.TOO_MANY, current=error.asked, limit=error.limit)
    busy = isinstance(error, TenantBusy)
    return Refusal(
        RefusalKind.TENANT_BUSY if busy else RefusalKind.TENANT_RATE,
        retry_after=error.retry_after,
        current=error.in_flight if isinstance(error, TenantBusy) else error.tokens,
        limit=error.limit,
        message=str(error),
    )

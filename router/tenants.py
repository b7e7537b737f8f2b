"""Tenants: how much each of those who share the replicas has under way, and has used."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from router.errors import TenantBusy, TenantRate
from router.ticket import Ticket

_MINUTE_S = 60.0
# Weight of the newest lifetime in the running mean, and the mean before anything has ended.
_LIFETIME_STEP = 0.1
_FIRST_LIFETIME_S = 5.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a tenant may use.

    Attributes:
        name: the tenant's, as in `Ticket.tenant`.
        weight: of its share when several have work, > 0.
        max_in_flight: requests under way, None for any number.
        tokens_per_minute: tokens of prompts and answers, None for any number.

    Raises:
        ValueError: for a value out of range.
    """

    name: str
    weight: float = 1.0
    max_in_flight: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight {self.weight} is not positive")
        for name in ("max_in_flight", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is not positive")


class _Usage:
    """What one tenant has under way and has used.

    The bucket holds a minute's tokens and fills evenly. What is generated cannot be foreseen, so
    it may be overdrawn: then the tenant waits until it is filled again.
    """

    __slots__ = ("_at", "_level", "in_flight", "lifetime_s", "terms", "tokens")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.in_flight = 0  # calls
        self.lifetime_s = _FIRST_LIFETIME_S  # of its calls, a running mean
        self.tokens = 0  # all that it has used
        self._level = float(terms.tokens_per_minute or 0)
        self._at = 0.0

    def use(self, tokens: int, now: float) -> None:
        """Count tokens; negative ones are given back."""
        self.tokens += tokens
        if self.terms.tokens_per_minute is not None:
            self._level = self._filled(self.terms.tokens_per_minute, now) - tokens
            self._at = now

    def lacks_s(self, tokens: int, now: float) -> float:
        """Seconds until a request of so many tokens may begin, 0 for now.

        One that is larger than the bucket may begin when that is full.
        """
        limit = self.terms.tokens_per_minute
        if limit is None:
            return 0.0
        lacking = min(max(tokens, 1), limit) - self._filled(limit, now)
        return max(0.0, lacking) * _MINUTE_S / limit

    def ended(self, lifetime_s: float | None) -> None:
        """Count a call that has ended; None if how long it took says nothing about others."""
        self.in_flight -= 1
        if lifetime_s is not None:
            self.lifetime_s += _LIFETIME_STEP * (lifetime_s - self.lifetime_s)

    def _filled(self, limit: int, now: float) -> float:
        return min(float(limit), self._level + (now - self._at) * limit / _MINUTE_S)


@dataclass(slots=True)
class _Call:
    """A request under way: all its tickets together.

    Attributes:
        name: of the call.
        usage: its tenant's.
        since: when it was let in, None if a router before this one did.
        tickets: those that were not dropped, and what the bucket was charged for each; None for
            what a router before this one let in.
        ran: something of it was computed.
    """

    name: str
    usage: _Usage
    since: float | None
    tickets: dict[str, int | None] = field(default_factory=dict)
    ran: bool = False


class Tenants:
    """The limits of all tenants: requests under way, and tokens a minute.

    A call is under way from the first of its tickets that is taken until the last is dropped by
    its owner, whatever becomes of them in between: whether they wait, run, are sent back, or
    were lost with a replica. Its prompt is charged once, when it is let in. What was charged for a
    ticket, no more and no less, is given back if it ends without ever having run.

    Invariants: each ticket that was taken and not dropped is in exactly one call; a tenant's
    `in_flight` is the number of its calls; no call is empty. Tenants without terms are not
    counted, so this costs nothing where there are none.
    """

    __slots__ = ("_call_of", "_calls", "_usage")

    def __init__(self, terms: Iterable[Terms]) -> None:
        """Know these tenants, none of which has used anything yet."""
        self._usage = {one.name: _Usage(one) for one in terms}
        self._calls: dict[str, _Call] = {}
        self._call_of: dict[str, _Call] = {}

    def __contains__(self, ticket_id: object) -> bool:
        return ticket_id in self._call_of

    def refusal(
        self,
        tickets: Sequence[Ticket],
        now: float,
        spread: Callable[[float], float],
        no_earlier: Callable[[float], float],
    ) -> TenantBusy | TenantRate | None:
        """Say why the tickets, all of one call, may not be taken now; None if they may.

        Args:
            tickets: at least one, none of them taken yet.
            now: the router's clock, in seconds.
            spread: moves a time, in seconds, by chance.
            no_earlier: the same, but only to later.
        """
        first = tickets[0]
        usage = self._usage.get(first.tenant)
        if usage is None:
            return None
        terms = usage.terms
        most = terms.max_in_flight
        if most is not None and usage.in_flight >= most and _call(first) not in self._calls:
            soon = spread(usage.lifetime_s / usage.in_flight)
            return TenantBusy(soon, terms.name, usage.in_flight, most)
        tokens = sum(ticket.cost for ticket in tickets)
        lacks_s = usage.lacks_s(tokens, now)
        if lacks_s and terms.tokens_per_minute is not None:
            return TenantRate(no_earlier(lacks_s), terms.name, tokens, terms.tokens_per_minute)
        return None

    def take(self, ticket: Ticket, now: float, *, charge: bool = True) -> None:
        """Count a ticket until it is dropped, and charge it once; to say so again changes nothing.

        Args:
            ticket: the ticket.
            now: the router's clock, in seconds.
            charge: False for one that a router before this one let in.
        """
        usage = self._usage.get(ticket.tenant)
        if usage is None:
            return
        call = self._call_of.get(ticket.id)
        if call is None:
            name = _call(ticket)
            call = self._calls.get(name)
            if call is None:
                call = self._calls[name] = _Call(name, usage, now if charge else None)
                usage.in_flight += 1
            call.tickets[ticket.id] = None
            self._call_of[ticket.id] = call
        if charge and call.tickets[ticket.id] is None:
            call.tickets[ticket.id] = ticket.cost
            usage.use(ticket.cost, now)

    def drop(self, ticket_id: str, now: float, *, ran: bool) -> None:
        """Count a ticket no more, if it was.

        Args:
            ticket_id: any id.
            now: the router's clock, in seconds.
            ran: something of it was computed, or may have been.
        """
        call = self._call_of.pop(ticket_id, None)
        if call is None:
            return
        charged = call.tickets.pop(ticket_id)
        if ran:
            call.ran = True
        elif charged:
            call.usage.use(-charged, now)
        if not call.tickets:
            del self._calls[call.name]
            since = call.since if call.ran else None
            call.usage.ended(None if since is None else now - since)

    def served(self, tenant: str, tokens: int, now: float) -> None:
        """Count tokens that were generated for a tenant."""
        if (usage := self._usage.get(tenant)) is not None:
            usage.use(tokens, now)

    def figures(self) -> list[tuple[Terms, int, int]]:
        """Each tenant's terms, requests under way and tokens used, in the order of the terms."""
        return [(one.terms, one.in_flight, one.tokens) for one in self._usage.values()]


def _call(ticket: Ticket) -> str:
    return ticket.call or ticket.id

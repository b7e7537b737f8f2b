"""Ticket and what the router decides about it.

Tokens never come here: a ticket says how urgent a request is, how much memory it needs and, if
that matters to where it goes, what its prompt begins with, as hashes.
"""

from dataclasses import dataclass
from typing import TypeAlias

from router.errors import (
    Busy,
    Expired,
    NeverFitsAnywhere,
    NoReplica,
    TenantBusy,
    TenantRate,
    TooManyTogether,
)
from router.prefix_depths import MOST_TOLD


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that asks for a replica.

    Attributes:
        id: unique among the tickets that live. A request that was already submitted
            somewhere and asks again (its replica died) should take a new id, so that late
            reports about its first life cannot be mistaken for news about its second.
        priority: higher is more urgent.
        arrival: wall clock of the request's first arrival, in ms; never changes.
        blocks_now: blocks of the prompt (and of tokens already generated), >= 1.
        blocks_max: blocks at the longest the request can get, >= blocks_now.
        kind: the kind of replica that it needs, since it has part of an answer from one
            (`router.report.Report.kind`); empty if any will do.
        again: the request had a place before (replica lost, router restarted), so it is
            not turned away by a full queue.
        tenant: whom the work is for; tenants share fairly. All the same one by default.
        cost: tokens that are charged to the tenant when it is placed, those of the prompt. 0 for
            a request that goes on elsewhere: its tenant has paid, and did not break the replica.
        call: the request that it is a part of, with others of the same name; empty if it is
            one by itself.
        start_within_s: seconds, from its first acquire on, after which it is not to be placed
            any more; None is never.
        prefix: 64-bit hashes of the prompt's full blocks (and of tokens already generated), each of
            all tokens up to its block's end, thinned as in `router.prefix_depths`; empty if
            nobody looks.

    Raises:
        ValueError: unless 1 <= blocks_now <= blocks_max, or for more than 128 hashes.
    """

    id: str
    priority: int
    arrival: int
    blocks_now: int
    blocks_max: int
    again: bool = False
    kind: str = ""
    tenant: str = ""
    cost: int = 0
    call: str = ""
    start_within_s: float | None = None
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.blocks_now <= self.blocks_max:
            raise ValueError(f"blocks_now {self.blocks_now}, blocks_max {self.blocks_max}")
        if len(self.prefix) > MOST_TOLD:
            raise ValueError(f"prefix of {len(self.prefix)} hashes, not {MOST_TOLD} at most")


@dataclass(frozen=True, slots=True)
class Placement:
    """The ticket goes to the replica and is charged to it."""

    ticket: str
    replica: str


No: TypeAlias = (
    Busy | TenantBusy | TenantRate | Expired | NoReplica | NeverFitsAnywhere | TooManyTogether
)
"""All that a ticket can meet instead of a replica."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A ticket that waited has left the queue: its time is over, or the replicas have changed."""

    ticket: str
    error: No


Decision: TypeAlias = Placement | Refusal


@dataclass(frozen=True, slots=True)
class Lost:
    """What the loss of a replica did.

    Attributes:
        replica: its name.
        tickets: ids whose grants were dropped, oldest first. They are not queued again by
            themselves: their owners know how far they got, release them and acquire again.
        decisions: about tickets that waited.
    """

    replica: str
    tickets: tuple[str, ...]
    decisions: list[Decision]

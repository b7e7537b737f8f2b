"""Preempting placement: where an urgent ticket that fits nowhere would preempt.

The replica's own scheduler preempts; the router only sends the ticket to where it will.
"""

from collections.abc import Iterable
from itertools import chain

from engine.rank import Rank
from router.account import Account
from router.queue import Entry


def where_it_preempts(entry: Entry, accounts: Iterable[Account], levels: int) -> str | None:
    """The replica on which the entry, which no replica takes, will preempt; None without one.

    Of several it is the one with the lowest-ranked victim; ranks never tie. Reads all grants,
    so it costs O(replicas + grants).

    Args:
        entry: the entry that goes first in the queue.
        accounts: of all replicas.
        levels: how much less the priority of a victim must be, > 0.
    """
    best: str | None = None
    lowest: Rank | None = None
    for account in accounts:
        victim = _lowest_victim(entry, account, levels)
        if victim is not None and (lowest is None or victim > lowest):
            best, lowest = account.figures.replica, victim
    return best


def _lowest_victim(entry: Entry, account: Account, levels: int) -> Rank | None:
    """The lowest rank that would have to yield to the entry there, None if it does not go there.

    Seats and blocks that all possible victims give up must suffice: what the others hold, or
    wait for, on that replica stays theirs. A grant that is known from a report alone has no
    rank, and is never a victim.
    """
    ticket = entry.ticket
    if account.suspect or not account.open or account.figures.total_blocks < ticket.blocks_max:
        return None
    if not account.suits(ticket):
        return None
    if any(grant.preempting for grant in account.charged.values()):
        return None  # one at a time: what that one does there is not known yet
    blocks, seats = account.free_blocks, account.free_seats
    lowest: Rank | None = None
    for grant in chain(account.charged.values(), account.admitted.values()):
        victim = grant.entry
        if victim is None or victim.rank < entry.rank:
            continue
        if victim.ticket.priority > ticket.priority - levels:
            continue
        blocks += grant.blocks
        seats += 1
        if lowest is None or victim.rank > lowest:
            lowest = victim.rank
    return lowest if blocks >= ticket.blocks_now and seats > 0 else None

"""Ledger: who holds what on which replica, and which replica has the most left."""

from collections import Counter
from collections.abc import Container, Iterator

from router.account import Account, Grant
from router.candidates import Candidates
from router.extent import Extent
from router.lost_lives import LostLives
from router.prefix_index import PrefixIndex
from router.prefix_match import Fate, Match
from router.queue import Entry
from router.report import Report
from router.silence import Silence
from router.ticket import Ticket


class Ledger:
    """The accounts of all replicas and the grants in them.

    Invariants:
    - An id has at most one grant, on one replica; ``_home`` says where.
    - A replica that takes anything is in ``_suspects`` if it is suspect, else in ``_trusted``.
      Every change of an account ends in `_index`, so choosing a replica costs the logarithm of
      their number.
    - Silence is noticed when the clock is: every turn of the router begins with `pass_time`.
    - What is expected of the tickets' prefixes is expected of those that have a grant.

    Attributes:
        fates: tickets that say what their prompts begin with, by what was held of that where they
            were placed; one that came back counts as it was placed first.
    """

    def __init__(self, lookahead: int, silence: Silence) -> None:
        """Start with no replica.

        Args:
            lookahead: requests beyond what fits that may be placed on one replica, >= 0.
            silence: measures theirs.
        """
        self._lookahead = lookahead
        self._accounts: dict[str, Account] = {}
        self._home: dict[str, Account] = {}
        self._silence = silence
        self._trusted = Candidates(self._accounts)
        self._suspects = Candidates(self._accounts)
        self._prefixes = PrefixIndex()
        self.fates: Counter[Fate] = Counter()
        self._lost = LostLives()
        self._joined = 0
        self._turn = 0
        self._extent = Extent()

    def __contains__(self, replica: object) -> bool:
        return replica in self._accounts

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def largest(self) -> int:
        """Blocks of the largest replica, 0 without replicas."""
        return self._extent.largest

    def has_others(self, kind: str) -> bool:
        """Whether a replica is known that is not of this kind."""
        return self._extent.has_others(kind)

    @property
    def grants(self) -> int:
        """Grants that live, on all replicas."""
        return len(self._home)

    @property
    def complete(self) -> int:
        """Replicas that do not leave and have reported all that they hold; O(replicas)."""
        accounts = self._accounts.values()
        return sum(not account.gap and not account.figures.leaving for account in accounts)

    def accounts(self) -> tuple[Account, ...]:
        """All accounts, in the order in which the replicas joined. Not to be changed."""
        return tuple(self._accounts.values())

    # What a placement policy asks (`router.policy.Fleet`).

    @property
    def replicas(self) -> tuple[str, ...]:
        """All replicas, in the order in which they joined."""
        return self._extent.names

    def requests(self, replica: str) -> int:
        """Grants that live on a known replica."""
        return self._accounts[replica].grants

    def freest(self, ticket: Ticket) -> str | None:
        """The replica where the ticket fits that has most blocks left, else one with lookahead.

        A suspect only if nobody else takes the ticket.
        """
        if ticket.blocks_max > self._extent.smallest or (
            ticket.kind and self.has_others(ticket.kind)
        ):
            return self._freest_of_the_able(ticket)
        return self._trusted.best(ticket) or self._suspects.best(ticket)

    def takes(self, replica: str, ticket: Ticket) -> bool:
        """Whether the ticket may be placed on the replica now."""
        account = self._accounts.get(replica)
        return account is not None and account.takes(ticket)

    def free_blocks(self, replica: str) -> int:
        """Effective free blocks of a known replica; may be negative."""
        return self._accounts[replica].free_blocks

    def free_if_shared(self, replica: str) -> int:
        """The same if what is on its way there shares the prefixes that are in use there."""
        return self._accounts[replica].free_if_shared

    def total_blocks(self, replica: str) -> int:
        """Blocks of a known replica's whole pool."""
        return self._accounts[replica].figures.total_blocks

    def level(self, replica: str, ticket: Ticket) -> int | None:
        """How well a known replica takes the ticket, None if it does not."""
        return self._accounts[replica].level(ticket)

    def held(self, replica: str, ticket: Ticket) -> int:
        """Blocks of the ticket's prompt that the replica holds, or soon will."""
        return self._prefixes.held(replica, ticket.prefix)

    def matches(self, ticket: Ticket, above: int) -> Iterator[list[Match]]:
        """The replicas that hold more of the ticket's prompt, those that hold most of it first."""
        return self._prefixes.matches(ticket.prefix, above)

    def _freest_of_the_able(self, ticket: Ticket) -> str | None:
        # Some replicas are too small for this ticket or of another kind. Rare, so a plain scan.
        able = [account for account in self._accounts.values() if account.takes(ticket)]
        if not able:
            return None
        best = min(able, key=lambda a: (a.suspect, not a.fits(ticket), a.order))
        return best.figures.replica

    # What changes it.

    def pass_time(self, now: float) -> None:
        """Take over that it is ``now``: who has been silent for too long is suspect."""
        for replica in self._silence.overdue(now):
            account = self._accounts[replica]
            account.silent = True
            self._index(account)

    def tick(self, now: float) -> None:
        """Say that the router is awake, so that silence can be told from its own sleep."""
        self._silence.tick(now)

    def silent(self, now: float) -> tuple[str, ...]:
        """The replicas that have been silent for so long that they count as dead."""
        return self._silence.silent(now)

    def doubt(self, replica: str) -> bool:
        """Mark a replica that could not be reached as suspect until its next report.

        Returns:
            Whether it was known and not marked so before.
        """
        account = self._accounts.get(replica)
        if account is None or account.unreachable:
            return False
        account.unreachable = True
        self._index(account)
        return True

    def grant(self, entry: Entry, replica: str, now: float, *, preempting: bool = False) -> None:
        """Charge the entry's ticket, which has no grant, to a known replica."""
        account = self._accounts[replica]
        ticket = entry.ticket
        self._turn += 1
        fate, shared = None, 0
        if ticket.prefix:
            fate, shared = self._prefixes.expect(ticket.id, replica, ticket.prefix)
            if not entry.returned:
                self.fates[fate] += 1
        grant = Grant(ticket.blocks_now, now, entry, preempting, shared, fate)
        account.charge(ticket.id, grant, self._turn)
        self._home[ticket.id] = account
        self._index(account)

    def holder(self, ticket_id: str) -> str | None:
        """The replica that has the ticket's grant, or None."""
        account = self._home.get(ticket_id)
        return None if account is None else account.figures.replica

    def admitted(self, ticket_id: str) -> bool:
        """Whether the ticket has a grant that a report has named admitted."""
        account = self._home.get(ticket_id)
        return account is not None and ticket_id in account.admitted

    def drop(self, ticket_id: str, *, finished: bool = False) -> Grant | None:
        """Forget the ticket's grant, if there is one.

        Args:
            ticket_id: any id.
            finished: its owner has seen its end, so that the replica has its blocks back.
        """
        account = self._home.pop(ticket_id, None)
        if account is None:
            return None
        self._prefixes.settle(ticket_id, ran=finished and ticket_id in account.admitted)
        grant = account.drop(ticket_id, finished=finished)
        self._index(account)
        return grant

    def close(self, replica: str) -> None:
        """Place nothing on a known replica until its next report."""
        account = self._accounts[replica]
        account.closed = True
        self._index(account)

    def apply(self, report: Report, now: float, elsewhere: Container[str]) -> list[Grant]:
        """Enter a report, registering a replica that was not known.

        Args:
            report: from any replica, in any order, also twice.
            now: the router's clock, in seconds.
            elsewhere: ids that a full report must not bring in: they wait in the queue.

        Returns:
            The grants that the report ends.
        """
        account = self._accounts.get(report.replica)
        if account is None:
            if self._lost.sent(report):
                return []
            account = self._open(report, now)
            newer = True
        else:
            resized = report.total_blocks != account.figures.total_blocks
            newer = account.renew(report, now)
            if newer and resized:
                self._measure()
        if newer:
            self._silence.heard(report.replica, now)
        # Who was named before has been there for a while; of the others nobody knows.
        ran = {ticket_id for ticket_id in report.ended if ticket_id in account.admitted}
        for ticket_id in report.admitted:
            account.name_admitted(ticket_id)
        ended = [self._end(account, one, ran=one in ran) for one in report.ended]
        if report.held is not None:
            ended += self._reconcile(account, report.held, now, elsewhere, newer)
        if newer:  # after that, since what was computed for those may be gone already
            self._prefixes.hear(report)
        self._index(account)
        return [grant for grant in ended if grant is not None]

    def wants_full_report(self, replica: str) -> bool:
        """Whether the replica's next report should carry ``held``."""
        account = self._accounts.get(replica)
        return account is None or account.gap

    def lose(self, replica: str) -> tuple[str, ...]:
        """Forget a replica and return the ids whose grants go with it, oldest first."""
        account = self._accounts.pop(replica, None)
        if account is None:
            return ()
        self._silence.forget(replica)
        self._trusted.discard(replica)
        self._suspects.discard(replica)
        self._prefixes.drop(replica)
        self._lost.add(account.figures)
        self._measure()
        lost = (*account.admitted, *account.charged)
        for ticket_id in lost:
            del self._home[ticket_id]
            self._prefixes.settle(ticket_id)
        return lost

    def _open(self, report: Report, now: float) -> Account:
        account = Account(report, self._lookahead, self._joined, now)
        self._joined += 1
        self._accounts[report.replica] = account
        self._lost.forget(report.replica)
        self._measure()
        return account

    def _end(self, account: Account, ticket_id: str, *, ran: bool) -> Grant | None:
        # A ticket may have a grant elsewhere by now; a report speaks for its own replica alone.
        if self._home.get(ticket_id) is not account:
            return None
        del self._home[ticket_id]
        self._prefixes.settle(ticket_id, ran=ran)
        return account.name_ended(ticket_id)

    def _reconcile(
        self,
        account: Account,
        held: tuple[str, ...],
        now: float,
        elsewhere: Container[str],
        newer: bool,
    ) -> list[Grant | None]:
        """Bring the grants of a replica in line with the full list of what it holds.

        A charged id that is not in the list stays charged: its submit may be on its way. An
        admitted one that is not in the list has ended, unless the list is old. Ids that are not
        known were granted by a router before this one; their figures are in the report.
        """
        for ticket_id in held:
            account.name_admitted(ticket_id)
        if not newer:
            return []
        for ticket_id in held:
            if ticket_id not in self._home and ticket_id not in elsewhere:
                account.admitted[ticket_id] = Grant(0, now, None)
                self._home[ticket_id] = account
        still = set(held)
        gone = [ticket_id for ticket_id in account.admitted if ticket_id not in still]
        return [self._end(account, ticket_id, ran=True) for ticket_id in gone]

    def _measure(self) -> None:
        """Note what is true of all replicas together, when one comes or goes; O(replicas)."""
        self._extent = Extent.of(account.figures for account in self._accounts.values())

    def _index(self, account: Account) -> None:
        here, there = self._trusted, self._suspects
        if account.suspect:
            here, there = there, here
        here.put(account)
        there.discard(account.figures.replica)

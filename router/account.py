"""Account: one replica's blocks and seats, as far as the router can know them.

What a replica can still take is ``figures of its newest report - charges + credits``:

- A *charge* is a grant that the report's figures do not count yet. It begins when the grant is
  made and ends when a report names the id admitted or ended, when the caller releases the
  ticket or brings it back, or when the replica is lost. Never by a timer: a prefill may well
  take minutes.
- A *credit* is a request that the figures still count although its owner has seen its end. It
  lets placement go on when reports stop. The next report takes all credits with it.

Why no order of messages counts a grant twice, or not at all:

1. The figures count exactly the ids that this and earlier reports name admitted and do not name
   ended (`router.report`). A charged grant that is named admitted therefore moves from the
   charge into figures at least as new, in one turn. Until the report comes, it is charged.
2. The lists of a report are applied whenever it arrives, late or twice: they say what is true
   for ever after, and naming an id again, or one that has gone, changes nothing. Figures are
   applied only if the report is newer than the last one applied.
3. Reports that overtake each other, or get lost, can leave a grant charged that the figures
   already count: too careful, never too bold. The missing report, a full report, or the release
   ends it.
4. A released grant is gone, whether or not a report had named it. Reports that name it later find
   nothing to change, and the figures that they carry are right by themselves. Only a full report
   brings it back, as admitted, which charges nothing; it goes when a report names it ended.
5. Credit is given only for a grant that was named admitted, is not yet named ended, and whose
   reports are complete so far: then its end is later than the figures, which still count it.
   With a report missing (`gap`), its end might be in there, so no credit is given.
"""

from dataclasses import dataclass
from typing import TypeAlias

from router.prefix_match import Fate
from router.queue import Entry
from router.report import Report
from router.ticket import Ticket

OrderKey: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Grant:
    """A ticket's place on a replica.

    Attributes:
        blocks: its blocks, 0 when the grant is known from a report alone.
        at: the router's clock when it was made, in seconds.
        entry: where the ticket stood in the queue, None when known from a report alone.
        preempting: it fitted nowhere, and was placed where it will preempt.
        shared: how many of its blocks hold a beginning of its prompt that requests placed there
            before have too.
        fate: what was held of its prompt there, None if it does not say what that begins with.
    """

    blocks: int
    at: float
    entry: Entry | None
    preempting: bool = False
    shared: int = 0
    fate: Fate | None = None

    def age_s(self, now: float) -> float | None:
        """Seconds since it was made, None when that is not known."""
        return None if self.entry is None else now - self.at


class Account:
    """What one replica has, what is charged to it, and whether it takes a ticket.

    `Ledger` is the only one that changes it.
    """

    __slots__ = (
        "_credit_blocks",
        "_credit_seats",
        "_figures",
        "admitted",
        "charged",
        "charged_blocks",
        "charged_shared",
        "closed",
        "gap",
        "joined",
        "lookahead",
        "reported_at",
        "silent",
        "turn",
        "unreachable",
    )

    def __init__(self, report: Report, lookahead: int, joined: int, now: float) -> None:
        """Open the account of a replica that was not known.

        Args:
            report: its first report.
            lookahead: requests beyond what fits that may be placed on it.
            joined: number of replicas that came before it.
            now: the router's clock, in seconds.
        """
        self.lookahead = lookahead
        self.joined = joined
        self.reported_at = now  # when the newest report came
        self.turn = 0  # number of its last placement among all placements
        self.closed = False  # it said QueueFull and has not reported since
        self.silent = False  # no report for too long
        self.unreachable = False  # somebody could not reach it, and it has not reported since
        self.gap = report.held is None  # a report is missing; only a full one heals it
        self.charged: dict[str, Grant] = {}  # not yet named by a report, oldest first
        self.charged_blocks = 0  # sum over `charged`
        self.charged_shared = 0  # the same of what they share
        self.admitted: dict[str, Grant] = {}  # named admitted, not yet ended
        self._figures = report
        self._credit_blocks = 0
        self._credit_seats = 0

    @property
    def figures(self) -> Report:
        """The newest report."""
        return self._figures

    @property
    def grants(self) -> int:
        """Grants that live: charged and admitted."""
        return len(self.charged) + len(self.admitted)

    @property
    def free_blocks(self) -> int:
        """Effective free blocks; negative when more is placed than fits."""
        figures = self._figures
        return (
            figures.free_blocks - figures.waiting_blocks - self.charged_blocks + self._credit_blocks
        )

    @property
    def free_if_shared(self) -> int:
        """The same if all that is charged finds there what it is thought to share.

        A hope, to compare replicas by. It is not relied upon: those who share may be gone, or
        not be computed yet, when the newcomer's blocks are handed out.
        """
        return self.free_blocks + self.charged_shared

    @property
    def free_seats(self) -> int:
        """Seats that nobody has or waits for; negative when more is placed than fits."""
        figures = self._figures
        taken = figures.running + figures.waiting + len(self.charged)
        return figures.max_seqs - taken + self._credit_seats

    @property
    def suspect(self) -> bool:
        """Whether it is to be tried last: there is reason to think that it is gone."""
        return self.silent or self.unreachable

    @property
    def open(self) -> bool:
        """Whether it may get anything: not while it leaves, nor after QueueFull until it reports.

        Each charged grant may come to wait in its queue, if only until its next step, so they
        count: otherwise a burst between two steps would end in QueueFull.
        """
        figures = self._figures
        if self.closed or figures.leaving:
            return False
        return figures.waiting + len(self.charged) < figures.max_waiting

    @property
    def spare(self) -> bool:
        """Whether it is open and fewer than ``lookahead`` requests are beyond what fits."""
        return self.open and self._beyond(self.lookahead) < self.lookahead

    @property
    def order(self) -> OrderKey:
        """Smallest first: most free blocks, then fewest grants, then least recently placed on."""
        return (-self.free_blocks, self.grants, self.turn, self.joined)

    def suits(self, ticket: Ticket) -> bool:
        """Whether the replica is of the kind that the ticket needs."""
        return not ticket.kind or ticket.kind == self._figures.kind

    def fits(self, ticket: Ticket) -> bool:
        """Whether the ticket has blocks and a seat there now."""
        return self.open and self.free_seats > 0 and self.free_blocks >= ticket.blocks_now

    def takes(self, ticket: Ticket) -> bool:
        """Whether the ticket may be placed there: it fits, or as part of the lookahead."""
        return self.level(ticket) is not None

    def level(self, ticket: Ticket) -> int | None:
        """How well it takes the ticket, see `router.policy.Fleet.level`; None if it does not."""
        if ticket.blocks_max > self._figures.total_blocks or not self.suits(ticket):
            return None
        if self.fits(ticket):
            return 2 if self.suspect else 0
        return (3 if self.suspect else 1) if self.spare else None

    def most(self, blocks: int) -> int:
        """How many tickets of so many blocks it would take in one turn if it had nothing else."""
        figures = self._figures
        fit = min(figures.max_seqs, figures.total_blocks // blocks)
        return min(fit + self.lookahead, figures.max_waiting)

    def _beyond(self, enough: int) -> int:
        """How many of its requests are beyond what fits; counting may stop at ``enough``.

        Charged grants stand behind the replica's own queue, in the order they were made. Room is
        what all of them together leave; walking back from the newest, a grant is beyond as long
        as there is less than none. If even its own queue exceeds it, all of that counts.
        """
        blocks, seats = self.free_blocks, self.free_seats
        if blocks >= 0 and seats >= 0:
            return 0
        count = 0
        for grant in reversed(self.charged.values()):
            if (blocks >= 0 and seats >= 0) or count >= enough:
                return count
            count += 1
            blocks += grant.blocks
            seats += 1
        return count + self._figures.waiting if blocks < 0 or seats < 0 else count

    def charge(self, ticket_id: str, grant: Grant, turn: int) -> None:
        """Count a new grant until a report does."""
        self.charged[ticket_id] = grant
        self.charged_blocks += grant.blocks
        self.charged_shared += grant.shared
        self.turn = turn

    def drop(self, ticket_id: str, *, finished: bool) -> Grant | None:
        """Forget a grant that its owner gave up; with ``finished``, its blocks are free."""
        grant = self._uncharge(ticket_id)
        if grant is not None:
            return grant
        grant = self.admitted.pop(ticket_id, None)
        if grant is not None and finished and not self.gap:
            self._credit_blocks += grant.blocks
            self._credit_seats += 1
        return grant

    def renew(self, report: Report, now: float) -> bool:
        """Take over the figures of a report unless a newer one was seen; say whether."""
        if report.seq <= self._figures.seq:
            return False
        self.reported_at = now
        self.gap = report.held is None and (self.gap or report.seq != self._figures.seq + 1)
        self._figures = report
        self._credit_blocks = self._credit_seats = 0
        self.closed = self.silent = self.unreachable = False
        return True

    def name_admitted(self, ticket_id: str) -> None:
        """A report names the id admitted: from now on its figures count it."""
        grant = self._uncharge(ticket_id)
        if grant is not None:
            self.admitted[ticket_id] = grant

    def name_ended(self, ticket_id: str) -> Grant | None:
        """A report names the id ended: nothing counts it any more."""
        return self._uncharge(ticket_id) or self.admitted.pop(ticket_id, None)

    def _uncharge(self, ticket_id: str) -> Grant | None:
        grant = self.charged.pop(ticket_id, None)
        if grant is not None:
            self.charged_blocks -= grant.blocks
            self.charged_shared -= grant.shared
        return grant

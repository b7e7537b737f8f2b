"""Report: what a replica says about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A replica's state after a step, and what happened since its last report.

    The replica takes all of it in one moment: an id is in ``admitted`` of this or an earlier
    report if and only if the figures count it. The ledger relies on that. What it says of its
    prefix cache is as old as the rest; a router that missed some of it asks for all again.

    Attributes:
        replica: its name, new for every life of the replica.
        seq: grows by one with every report of one life.
        total_blocks: size of its pool.
        free_blocks: blocks that an admission could take now (with a prefix cache, those that
            can be evicted too).
        running: requests that hold a seat.
        max_seqs: seats.
        waiting: requests in its own queue.
        waiting_blocks: blocks that these need for the tokens they have so far.
        max_waiting: how many may wait there before it answers QueueFull.
        admitted: ids that its submit accepted since its last report.
        ended: ids that finished, failed or were aborted since its last report. An id may be
            in both.
        held: all ids that it runs or keeps waiting, or None. Sent with the first report, and
            whenever the router asks (`RouterCore.wants_full_report`).
        kind: what it computes with. Two replicas of one kind give the same answers, bit for bit.
        leaving: it takes nothing new, what it has goes on. A later report may take that back.
        stored: hashes of blocks (`router.ticket.Ticket.prefix`) that its prefix cache found room
            for since its last report, and still holds.
        removed: hashes of blocks that it held and holds no more; none is in both.
        prefixes: all hashes that it holds, but for what ``stored`` and ``removed`` say beside; or
            None. Sent with ``held``, or with the next report if the last one seemed to be lost.
    """

    replica: str
    seq: int
    total_blocks: int
    free_blocks: int
    running: int
    max_seqs: int
    waiting: int
    waiting_blocks: int
    max_waiting: int
    admitted: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    held: tuple[str, ...] | None = None
    kind: str = ""
    leaving: bool = False
    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    prefixes: tuple[int, ...] | None = None

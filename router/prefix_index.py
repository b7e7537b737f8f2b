"""PrefixIndex: which replicas hold which beginnings of prompts, or soon will."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Final, NamedTuple

from router.prefix_coming import Coming
from router.prefix_depths import DEPTHS
from router.prefix_holders import Holders
from router.prefix_match import Fate, Match
from router.prefix_use import PrefixUse, counted
from router.report import Report

MOST_PAIRS: Final = 2_000_000
"""Pairs of a replica and a hash that are remembered; see the documentation for their size."""

_BATCH: Final = 1024  # pairs that are forgotten together
_LOOKS: Final = 32  # holders that one look-up passes at most
_SPARE: Final = 4  # use is noted once less than this part of the room is left


class Expectation(NamedTuple):
    """What a ticket that is placed will make its replica hold.

    Attributes:
        replica: where it is.
        new: hashes that the replica had not reported, from the first of them on.
        counted: hashes by which it is known what is in use there.
    """

    replica: str
    new: tuple[int, ...]
    counted: tuple[int, ...]


class PrefixIndex:
    """Hashes of blocks by replica, and replicas by hash.

    A replica holds a hash since it said so (`hear`), or since a ticket that has it was placed
    there (`expect`): until it is computed, many more of the same beginning may come. The second
    kind goes with its ticket; by then the replica has told what it keeps.

    It is a hint: what it does not know costs a prefill, what it says in error the same. So it may
    forget. With more than ``most`` pairs of both kinds, of the replica that has said most those go
    that were used the longest ago; and of a ticket no more is expected than there is room for.
    Since a replica names a hash once and may hold it for days, a hash that was forgotten is learned
    again from a ticket that has it and ran there.

    A replica that holds a block holds those before it. What was forgotten of these may leave gaps,
    so `matches` looks from the end of a prompt.

    Invariants: ``_tables`` has what each replica has said and what tickets that ran there have,
    and a replica is in the holders of a hash if and only if the hash is in its table; ``_said`` is
    the number of entries in all tables. The tables are in order of use, as far as there has been
    need to forget.
    """

    __slots__ = ("_coming", "_expected", "_holders", "_most", "_said", "_tables", "_use")

    def __init__(self, most: int = MOST_PAIRS) -> None:
        """Start empty.

        Args:
            most: pairs of a replica and a hash that are remembered, > 0.
        """
        self._most = most
        self._said = 0
        self._tables: dict[str, dict[int, None]] = {}
        self._holders = Holders()
        self._coming = Coming()
        self._use = PrefixUse()
        self._expected: dict[str, Expectation] = {}

    def __len__(self) -> int:
        """Pairs of a replica and a hash; one that was said and is expected counts twice."""
        return self._said + self._coming.pairs

    def hear(self, report: Report) -> None:
        """Take over what a report says, which must be newer than all before it of its replica."""
        if report.prefixes is not None:
            kept = frozenset(report.prefixes)
            gone = [key for key in self._tables.get(report.replica, ()) if key not in kept]
            self._remove(report.replica, gone)
            self._store(report.replica, report.prefixes)
        if report.stored:
            self._store(report.replica, report.stored)
        if report.removed:
            self._remove(report.replica, report.removed)

    def drop(self, replica: str) -> None:
        """Forget a replica; its tickets are settled, or will be, as ever."""
        self._coming.drop(replica)
        self._use.drop(replica)
        table = self._tables.pop(replica, {})
        self._said -= len(table)
        self._holders.remove(table, replica)

    def expect(self, ticket: str, replica: str, prefix: tuple[int, ...]) -> tuple[Fate, int]:
        """Note that the replica will hold the prefix, since the ticket goes there; O(prefix).

        Args:
            ticket: its id, which is not expected anywhere.
            replica: where it goes.
            prefix: as in `router.ticket.Ticket`.

        Returns:
            What this means for the ticket, and how many of its blocks, at least, tickets that went
            there before have too.
        """
        table = self._tables.get(replica)
        if table is None:
            table = self._tables[replica] = {}
        coming = self._coming
        known, fate = self._known(prefix, 0, len(prefix)), Fate.NOWHERE
        said = known
        if known:
            last = prefix[known - 1]
            # What was looked up just now is at hand for a processor, the table is not.
            if self._holders.include(last, replica):
                fate = Fate.HERE
            else:
                fate = Fate.HERE if coming.holders.include(last, replica) else Fate.ELSEWHERE
                while said and prefix[said - 1] not in table:  # said is a beginning, but for gaps
                    said -= 1
        pairs = self._said + coming.pairs
        if pairs > self._most - self._most // _SPARE:
            self._touch(table, replica, prefix[:said])
        new = prefix[said : said + self._most - coming.pairs]
        coming.add(replica, new)
        counts = counted(prefix)
        used = self._use.add(replica, counts)
        self._expected[ticket] = Expectation(replica, new, counts)
        self._shrink()
        return fate, used

    def settle(self, ticket: str, *, ran: bool = False) -> None:
        """Expect nothing of a ticket any more; unknown ones are passed over.

        Args:
            ticket: its id.
            ran: its prompt was computed, so the replica holds it until it says that it does not.
        """
        expected = self._expected.pop(ticket, None)
        if expected is None:
            return
        replica, new, counts = expected
        self._coming.remove(replica, new)
        self._use.remove(replica, counts)
        if ran and replica in self._tables:  # else it was dropped, and holds nothing
            self._store(replica, new)

    def held(self, replica: str, prefix: tuple[int, ...]) -> int:
        """How many blocks of a prompt the replica holds, or less if there are gaps; O(log prefix).

        Less does no harm: `matches` names the replica with what it holds.
        """
        table, coming = self._tables.get(replica, {}), self._coming.to(replica)
        many, beyond = 0, len(prefix)  # the first so many are held, the last of these is not
        while many < beyond:
            middle = (many + beyond) // 2
            if prefix[middle] in table or prefix[middle] in coming:
                many = middle + 1
            else:
                beyond = middle
        return DEPTHS[many - 1] if many else 0

    def matches(self, prefix: tuple[int, ...], above: int) -> Iterator[list[Match]]:
        """Yield the replicas that hold some of a prompt, those that hold most of it first.

        Each comes once, with those that hold as much. It costs O(prefix + matches), whatever else
        is known; the matches end when many holders were passed. Nothing may be changed meanwhile.

        Args:
            prefix: as in `router.ticket.Ticket`.
            above: only those are of interest that hold more blocks than that.
        """
        seen: set[str] = set()
        said, coming, in_use = self._holders, self._coming.holders, self._use.blocks
        least, many = bisect_right(DEPTHS, above), len(prefix)
        while (many := self._known(prefix, least, many)) > least and len(seen) < _LOOKS:
            holders = (*coming.of(prefix[many - 1]), *said.of(prefix[many - 1]))
            if more := [name for name in dict.fromkeys(holders) if name not in seen]:
                seen.update(more)
                blocks, beginning = DEPTHS[many - 1], prefix[:many]
                yield [Match(name, blocks, in_use(name, beginning)) for name in more]
            many -= 1

    def _known(self, prefix: tuple[int, ...], begin: int, end: int) -> int:
        """How many hashes there are up to the last before ``end`` that anybody holds.

        At least ``begin``: those before it are not looked up.
        """
        said = self._holders.last(prefix, begin, end)
        return self._coming.holders.last(prefix, said, end)

    def _touch(self, table: dict[int, None], replica: str, keys: tuple[int, ...]) -> None:
        """Note that a beginning which the replica holds was used, and close its gaps."""
        back, before = keys[::-1], len(table)  # the first of them is to be forgotten last
        known = [*map(table.pop, back, repeat(False))]
        table.update(dict.fromkeys(back))
        if False in known:
            self._said += len(table) - before
            gaps = [key for key, was in zip(back, known, strict=True) if was is False]
            self._holders.add(gaps, replica)

    def _store(self, replica: str, keys: Sequence[int]) -> None:
        table = self._tables.setdefault(replica, {})
        new = [key for key in dict.fromkeys(reversed(keys)) if key not in table]  # as in `_touch`
        table.update(dict.fromkeys(new))
        self._said += len(new)
        self._holders.add(new, replica)
        self._shrink()

    def _remove(self, replica: str, keys: Iterable[int]) -> None:
        table = self._tables.get(replica, {})
        gone = [key for key in keys if table.pop(key, False) is None]
        self._said -= len(gone)
        self._holders.remove(gone, replica)

    def _shrink(self) -> None:
        """Forget of the largest table what was used the longest ago, until it is not too much.

        Looking for it costs O(replicas), but once for many pairs that were added.
        """
        while self._said and self._said + self._coming.pairs > self._most:
            replica, table = max(self._tables.items(), key=lambda item: len(item[1]))
            self._remove(replica, tuple(islice(table, max(1, min(_BATCH, self._most // 16)))))

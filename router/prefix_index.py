"""PrefixIndex: which replicas hold which beginnings of prompts, or soon will."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from router.prefix_depths import DEPTHS
from router.report import Report

MOST_PAIRS: Final = 2_000_000
"""Pairs of a replica and a hash that are remembered; see the documentation for their size."""

_BATCH: Final = 1024  # pairs that are forgotten together
_LOOKS: Final = 32  # holders that one look-up passes at most
_SPARE: Final = 4  # use is noted once less than this part of the room is left

# Of a ticket's hashes, those by which it is known what is in use: one that is in use says so of
# all before it, and counting each would cost more than all the rest of a placement.
_COUNTED: Final = slice(3, None, 4)

# In place of a holder's name, which is not empty: there are several. One is by far the most common,
# and a dict of one takes several times the memory. And the collector of garbage, which comes by
# often since so little else lives long here, passes over a dict that has only numbers and strings.
_SEVERAL: Final = ""


class Match(NamedTuple):
    """A replica that holds a beginning of a prompt.

    Attributes:
        replica: its name.
        blocks: how many blocks of the prompt it holds, as far as is known.
        in_use: how many of these, at least, a request that is placed there holds as well, so that
            they are not among the free ones.
    """

    replica: str
    blocks: int
    in_use: int


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


def _depth(used: int) -> int:
    """Blocks that so many counted hashes stand for."""
    return DEPTHS[_COUNTED.start + (used - 1) * _COUNTED.step] if used else 0


class Fate(StrEnum):
    """Where a ticket went, by what was held of its prompt."""

    HERE = "here"  # no replica was known to hold more of it
    ELSEWHERE = "elsewhere"  # another replica holds more
    NOWHERE = "nowhere"  # nobody holds any of it


class PrefixIndex:
    """Hashes of blocks by replica, and replicas by hash.

    A replica holds a hash since it said so (`store`), or since a ticket that has it was placed
    there (`expect`): until it is computed, many more of the same beginning may come. The second
    kind goes with its ticket; by then the replica has told what it keeps.

    It is a hint: what it does not know costs a prefill, what it says in error the same. So it may
    forget. With more than ``most`` pairs, of the replica that has most of them those go that were
    used the longest ago. Since a replica names a hash once and may hold it for days, a hash that
    was forgotten is learned again from a ticket that has it and ran there.

    A replica that holds a block holds those before it. What was forgotten of these may leave gaps,
    so `matches` looks from the end of a prompt.

    Invariants: a replica is in the holders of a hash if and only if the hash is in its table;
    there is no empty set of holders; ``_pairs`` is the number of entries in all tables. An entry is
    twice the number of tickets that expect it, and were placed when it had not been reported, plus
    one if the replica has reported it; less, if it was forgotten meanwhile. The tables are in order
    of use, as far as there has been need to forget.
    """

    __slots__ = ("_expected", "_holders", "_most", "_pairs", "_several", "_tables", "_uses")

    def __init__(self, most: int = MOST_PAIRS) -> None:
        """Start empty.

        Args:
            most: pairs of a replica and a hash that are remembered, > 0.
        """
        self._most = most
        self._pairs = 0
        self._tables: dict[str, dict[int, int]] = {}
        self._holders: dict[int, str] = {}
        self._several: dict[int, dict[str, None]] = {}  # those of hashes that have several
        self._expected: dict[str, Expectation] = {}
        self._uses: dict[str, dict[int, int]] = {}  # replica -> hash -> tickets that count it

    def __len__(self) -> int:
        return self._pairs

    def hear(self, report: Report) -> None:
        """Take over what a report says, which must be newer than all before it of its replica."""
        if report.prefixes is not None:
            self._replace(report.replica, report.prefixes)
        if report.stored:
            self._store(report.replica, report.stored)
        if report.removed:
            self._remove(report.replica, report.removed)

    def drop(self, replica: str) -> None:
        """Forget a replica; its tickets are settled, or will be, as ever."""
        table = self._tables.pop(replica, {})
        self._uses.pop(replica, None)
        self._pairs -= len(table)
        for key in table:
            self._unlist(key, replica)

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
        known = self._known(prefix)
        fate = self._fate(replica, prefix[known - 1]) if known else Fate.NOWHERE
        table = self._tables.setdefault(replica, {})
        # What was reported is a beginning, but for gaps.
        while known and not table.get(prefix[known - 1], 0) & 1:
            known -= 1
        new = prefix[known:]
        if self._pairs > self._most - self._most // _SPARE:
            self._touch(table, replica, prefix[:known])
        for key in new:
            state = table.get(key)
            if state is None:
                self._list(key, replica)
                state = 0
            table[key] = state + 2
        uses, counted = self._uses.setdefault(replica, {}), prefix[_COUNTED]
        used = 0
        for key in counted:
            count = uses.get(key, 0)
            used += count > 0  # these come first
            uses[key] = count + 1
        self._expected[ticket] = Expectation(replica, new, counted)
        self._shrink()
        return fate, _depth(used)

    def settle(self, ticket: str, *, ran: bool = False) -> None:
        """Expect nothing of a ticket any more; unknown ones are passed over.

        Args:
            ticket: its id.
            ran: its prompt was computed, so the replica holds it until it says that it does not.
        """
        expected = self._expected.pop(ticket, None)
        if expected is None:
            return
        replica = expected.replica
        uses = self._uses.get(replica, {})
        table = self._tables.get(replica, {})
        ran &= replica in self._tables  # else it was dropped, and holds nothing
        for key in expected.new:
            state = table.get(key, 0)
            if ran:
                if not state:  # forgotten meanwhile
                    self._list(key, replica)
                table[key] = max(0, state - 2) | 1
            elif state > 2:
                table[key] = state - 2
            elif state == 2:
                self._forget(table, key, replica)
        for key in expected.counted:
            count = uses.pop(key, 0) - 1
            if count > 0:
                uses[key] = count
        self._shrink()

    def held(self, replica: str, prefix: tuple[int, ...]) -> int:
        """How many blocks of a prompt the replica holds, or less if there are gaps; O(log prefix).

        Less does no harm: `matches` names the replica with what it holds.
        """
        table = self._tables.get(replica)
        if not table:
            return 0
        many, beyond = 0, len(prefix)  # the first so many are held, the last of these is not
        while many < beyond:
            middle = (many + beyond) // 2
            if prefix[middle] in table:
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
        for at in range(len(prefix) - 1, -1, -1):
            if DEPTHS[at] <= above or len(seen) >= _LOOKS:
                return
            holders = self._holders.get(prefix[at])
            if holders is None:
                continue
            if holders:
                if holders not in seen:
                    seen.add(holders)
                    yield [Match(holders, DEPTHS[at], self._in_use(holders, prefix, at + 1))]
                continue
            some = islice(self._several[prefix[at]], _LOOKS)
            if more := [replica for replica in some if replica not in seen]:
                seen.update(more)
                yield [Match(one, DEPTHS[at], self._in_use(one, prefix, at + 1)) for one in more]

    def _in_use(self, replica: str, prefix: tuple[int, ...], many: int) -> int:
        """How many of the blocks that the first ``many`` hashes stand for are in use there."""
        uses = self._uses.get(replica)
        if not uses:
            return 0
        used, beyond = 0, len(range(_COUNTED.start, many, _COUNTED.step))
        while used < beyond:
            middle = (used + beyond) // 2
            if prefix[_COUNTED.start + middle * _COUNTED.step] in uses:
                used = middle + 1
            else:
                beyond = middle
        return _depth(used)

    def _known(self, prefix: tuple[int, ...]) -> int:
        """How many hashes there are up to the last that anybody holds."""
        holders = self._holders
        for at in range(len(prefix) - 1, -1, -1):
            if prefix[at] in holders:
                return at + 1
        return 0

    def _fate(self, replica: str, last: int) -> Fate:
        """What it means to go there, by the last hash that anybody holds."""
        holder = self._holders[last]
        here = replica in self._several[last] if holder == _SEVERAL else holder == replica
        return Fate.HERE if here else Fate.ELSEWHERE

    def _touch(self, table: dict[int, int], replica: str, keys: tuple[int, ...]) -> None:
        """Note that a beginning which the replica holds was used, and close its gaps."""
        for key in reversed(keys):  # the first of them is to be forgotten last
            state = table.pop(key, 0)
            if not state:
                self._list(key, replica)
            table[key] = state | 1

    def _store(self, replica: str, keys: Sequence[int]) -> None:
        table = self._tables.setdefault(replica, {})
        for key in reversed(keys):  # as in `_touch`
            state = table.get(key)
            if state is None:
                self._list(key, replica)
                table[key] = 1
            else:
                table[key] = state | 1
        self._shrink()

    def _remove(self, replica: str, keys: Iterable[int]) -> None:
        table = self._tables.get(replica, {})
        for key in keys:
            state = table.get(key, 0)
            if state == 1:
                self._forget(table, key, replica)
            elif state & 1:
                table[key] = state - 1

    def _replace(self, replica: str, keys: Sequence[int]) -> None:
        kept = frozenset(keys)
        said = [key for key, state in self._tables.get(replica, {}).items() if state & 1]
        self._remove(replica, [key for key in said if key not in kept])
        self._store(replica, keys)

    def _list(self, key: int, replica: str) -> None:
        """Add the replica to those that hold the hash; the caller enters it in the table."""
        self._pairs += 1
        holder = self._holders.setdefault(key, replica)
        if holder == replica:
            return
        if holder == _SEVERAL:
            self._several[key][replica] = None
        else:
            self._several[key] = {holder: None, replica: None}
            self._holders[key] = _SEVERAL

    def _unlist(self, key: int, replica: str) -> None:
        if self._holders[key] != _SEVERAL:
            del self._holders[key]
            return
        holders = self._several[key]
        del holders[replica]
        if len(holders) == 1:
            self._holders[key] = next(iter(holders))
            del self._several[key]

    def _forget(self, table: dict[int, int], key: int, replica: str) -> None:
        del table[key]
        self._pairs -= 1
        self._unlist(key, replica)

    def _shrink(self) -> None:
        """Forget of the largest table what was used the longest ago, until it is not too much.

        Looking for it costs O(replicas), but once for many pairs that were added.
        """
        while self._pairs > self._most:
            replica, table = max(self._tables.items(), key=lambda item: len(item[1]))
            for key in list(islice(table, max(1, min(_BATCH, self._most // 16)))):
                self._forget(table, key, replica)

"""The index beside plain dicts of sets; what it forgets, and what it never says."""

import gc
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefix_depths import DEPTHS
from router.prefix_holders import Holders
from router.prefix_index import PrefixIndex
from router.prefix_match import Fate, Match
from tests.router.fake_cluster import FakeReplica

REPLICAS = "abc"
_Replicas = st.sampled_from(REPLICAS)
# Chains, as prompts that begin alike make them: a hash stands for all before it too.
CHAINS = ((*range(1, 10),), (*range(1, 7), 70, 80), (1, 20, 30, 40, 50), (99,), ())
_Chains = st.sampled_from(CHAINS)
_Keys = st.lists(st.sampled_from(sorted({key for one in CHAINS for key in one})), max_size=6)
_Moves = st.one_of(
    st.tuples(st.just("store"), _Replicas, _Keys, _Keys),
    st.tuples(st.just("all"), _Replicas, _Keys),
    st.tuples(st.just("expect"), _Replicas, _Chains),
    st.tuples(st.just("settle"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("drop"), _Replicas),
)


@dataclass
class Plain:
    """What each replica said it holds, and what each living ticket will make it hold."""

    said: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in REPLICAS})
    live: dict[str, tuple[str, tuple[int, ...], set[int]]] = field(default_factory=dict)

    def holds(self, replica: str) -> set[int]:
        new = [keys for name, _, keys in self.live.values() if name == replica]
        return self.said[replica].union(*new)

    def new(self, replica: str, chain: tuple[int, ...]) -> set[int]:
        """What is expected of a ticket: all beyond what was reported."""
        said = [at for at, key in enumerate(chain) if key in self.said[replica]]
        return set(chain[max(said, default=-1) + 1 :])

    def in_use(self, replica: str, chain: tuple[int, ...]) -> int:
        """Blocks of it, by the fourth, eighth, ... hash, that a ticket there has too."""
        used = {key for name, one, _ in self.live.values() if name == replica for key in one[3::4]}
        return max((DEPTHS[at] for at in range(3, len(chain), 4) if chain[at] in used), default=0)

    def held(self, replica: str, chain: tuple[int, ...]) -> int:
        """The same as `blocks` when no block is held without those before it."""
        many = bisect_left(chain, True, key=lambda k: k not in self.holds(replica))
        return DEPTHS[many - 1] if many else 0

    def blocks(self, replica: str, chain: tuple[int, ...]) -> int:
        held = [at for at, key in enumerate(chain) if key in self.holds(replica)]
        return DEPTHS[held[-1]] if held else 0

    def fate(self, replica: str, chain: tuple[int, ...]) -> Fate:
        most = max(self.blocks(name, chain) for name in REPLICAS)
        if not most:
            return Fate.NOWHERE
        return Fate.HERE if self.blocks(replica, chain) == most else Fate.ELSEWHERE


class Pair:
    """The index and the plain one, told the same."""

    def __init__(self, most: int) -> None:
        self.index, self.plain = PrefixIndex(most), Plain()
        # Not at their first reports, which are full ones and would say that nothing is held.
        self.replicas = {name: FakeReplica(name, seq=1) for name in REPLICAS}
        self.count = 0

    def move(self, kind: str, *what: object) -> None:
        getattr(self, kind)(*what)

    def store(self, name: str, stored: list[int], removed: list[int]) -> None:
        removed = [key for key in removed if key not in stored]
        replica = self.replicas[name]
        replica.news = dict.fromkeys(stored, True) | dict.fromkeys(removed, False)
        self.index.hear(replica.report())
        self.plain.said[name] = (self.plain.said[name] | set(stored)) - set(removed)

    def all(self, name: str, keys: list[int]) -> None:
        replica = self.replicas[name]
        replica.cached = dict.fromkeys(keys)
        self.index.hear(replica.report(full=True))
        self.plain.said[name] = set(keys)

    def expect(self, name: str, chain: tuple[int, ...]) -> None:
        self.count += 1
        fate = self.plain.fate(name, chain)
        shared = self.plain.in_use(name, chain)
        assert self.index.expect(f"t{self.count}", name, chain) == (fate, shared)
        self.plain.live[f"t{self.count}"] = (name, chain, self.plain.new(name, chain))

    def settle(self, back: int, ran: bool) -> None:
        ticket = f"t{self.count - back}"
        self.index.settle(ticket, ran=ran)
        if ticket in self.plain.live:
            name, _, new = self.plain.live.pop(ticket)
            self.plain.said[name] |= new if ran else set()

    def drop(self, name: str) -> None:
        self.index.drop(name)
        self.plain.said[name] = set()
        # Its tickets are settled when their loss is heard of, which comes to the same.
        for ticket in [t for t, (where, *_) in self.plain.live.items() if where == name]:
            self.index.settle(ticket)
            del self.plain.live[ticket]


@settings(deadline=None, max_examples=200)
@given(st.lists(_Moves, max_size=25))
def test_it_says_what_plain_sets_say(moves: list[tuple[object, ...]]) -> None:
    both = Pair(most=1_000)
    for kind, *what in moves:
        both.move(str(kind), *what)
        index, plain = both.index, both.plain
        coming = {(name, key) for name, _, keys in plain.live.values() for key in keys}
        assert len(index) == sum(map(len, plain.said.values())) + len(coming)
        for chain in CHAINS:
            lengths = {name: plain.blocks(name, chain) for name in REPLICAS}
            for name in REPLICAS:
                assert index.held(name, chain) == plain.held(name, chain)
            for above in (0, 3):
                found = list(index.matches(chain, above))
                assert [one[0].blocks for one in found] == sorted(
                    {blocks for blocks in lengths.values() if blocks > above}, reverse=True
                )
                flat = [match for group in found for match in group]
                assert {one.replica: one.blocks for one in flat} == {
                    name: blocks for name, blocks in lengths.items() if blocks > above
                }
                for one in flat:
                    upto = chain[: DEPTHS.index(one.blocks) + 1]
                    assert one.in_use == plain.in_use(one.replica, upto)
    assert_consistent(both.index)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 6), st.lists(_Moves, max_size=25))
def test_what_it_forgets_it_does_not_invent(most: int, moves: list[tuple[object, ...]]) -> None:
    index, plain = PrefixIndex(most), Pair(most=1_000)
    both = Pair(most)
    both.index = index
    both.expect = lambda name, chain: None  # type: ignore[method-assign]  # fates differ then
    for kind, *what in moves:
        both.move(str(kind), *what)
        plain.move(str(kind), *what)
        assert len(index) <= most
        assert_consistent(index)
        for name in REPLICAS:
            assert known(index, name) <= both.plain.holds(name)


def known(index: PrefixIndex, replica: str) -> set[int]:
    """All that the replica is thought to hold, or to hold soon."""
    return {*index._tables.get(replica, ()), *index._coming.to(replica)}


def assert_consistent(index: PrefixIndex) -> None:
    said = {(name, key) for name, table in index._tables.items() for key in table}
    coming = {(name, key) for name, counts in index._coming._counts.items() for key in counts}
    assert said == listed(index._holders)
    assert coming == listed(index._coming.holders)
    assert len(said) + len(coming) == len(index)
    assert all(n > 0 for counts in index._coming._counts.values() for n in counts.values())


def listed(holders: Holders) -> set[tuple[str, int]]:
    assert holders._several.keys() == {key for key, one in holders._one.items() if not one}
    assert all(len(several) > 1 for several in holders._several.values())
    return {
        (name, key)
        for key, holder in holders._one.items()
        for name in ((holder,) if holder else holders._several[key])
    }


def test_the_replica_that_has_most_forgets_its_oldest() -> None:
    index = PrefixIndex(most=160)
    busy, other = FakeReplica("busy"), FakeReplica("other")
    other.news = {1_000: True}
    index.hear(other.report())
    for first in range(0, 300, 10):
        busy.news = dict.fromkeys(range(first, first + 10), True)
        index.hear(busy.report())
    assert len(index) <= 160
    assert index.held("other", (1_000,)) == 1
    assert index.held("busy", (299,)) == 1
    assert index.held("busy", (0,)) == 0


def stored(index: PrefixIndex, replica: FakeReplica, keys: Iterable[int]) -> None:
    replica.news = dict.fromkeys(keys, True)
    index.hear(replica.report())


def test_what_every_prompt_begins_with_is_not_forgotten_for_what_came_once() -> None:
    """Fault: what all use was named first, and so it was the first to go, and gone for good."""
    index, replica = PrefixIndex(most=64), FakeReplica("a")
    stored(index, replica, (1, 2, 3))
    for i in range(70):
        index.expect(f"t{i}", "a", (1, 2, 3, 100 + i))
        stored(index, replica, (100 + i,))
        index.settle(f"t{i}", ran=True)
        assert len(index) <= 64
        assert set(index._tables["a"]) >= {1, 2, 3}
    assert index.held("a", (100,)) == 0


def test_what_was_forgotten_is_known_again_when_a_request_has_used_it() -> None:
    """Fault: no event tells of it again while the replica keeps it."""
    index, replica = PrefixIndex(most=64), FakeReplica("a")
    stored(index, replica, (1, 2, 3))
    stored(index, replica, range(100, 170))
    assert index.held("a", (1, 2, 3)) == 0
    index.expect("stopped", "a", (1, 2, 3, 4))
    index.settle("stopped")
    assert index.held("a", (1, 2, 3)) == 0  # perhaps it never ran
    index.expect("ran", "a", (1, 2, 3, 4))
    stored(index, replica, (4,))
    index.settle("ran", ran=True)
    assert index.held("a", (1, 2, 3)) == 3
    replica.news = dict.fromkeys((1, 2, 3, 4), False)
    index.hear(replica.report())
    assert index.held("a", (1, 2, 3, 4)) == 0


def test_a_gap_in_what_is_known_hides_nothing_and_is_closed_by_use() -> None:
    """Fault: a gap is never filled, since a replica names what it holds once."""
    index, replica = PrefixIndex(most=16), FakeReplica("a")
    chain = tuple(range(16))
    for first in range(0, 16, 4):  # as a conversation grows
        stored(index, replica, chain[first : first + 4])
    stored(index, replica, (100,))
    assert len(set(chain) & set(index._tables["a"])) == 15
    assert list(index.matches(chain, 0)) == [[Match("a", 16, 0)]]
    assert index.expect("x", "a", chain) == (Fate.HERE, 0)
    assert set(index._tables["a"]) == set(chain)


def test_the_collector_of_garbage_does_not_walk_through_it() -> None:
    """Fault: it goes through every pair several times a second, for nothing."""
    index = PrefixIndex()
    for name in "ab":
        stored(index, FakeReplica(name), range(100))
        index.expect(name, name, tuple(range(90, 110)))
    large = (
        *(index._holders._one, index._coming.holders._one),
        *(*index._tables.values(), *index._coming._counts.values()),
        *index._use._counts.values(),
    )
    assert not any(gc.is_tracked(one) for one in large)


def test_tickets_expect_no_more_than_is_remembered() -> None:
    index = PrefixIndex(most=32)
    for i in range(100):
        index.expect(str(i), "a", tuple(range(10 * i, 10 * i + 10)))
        assert len(index) <= 32
    for i in range(100):
        index.settle(str(i))
    assert len(index) == 0
    assert not index._expected


def test_a_look_up_does_not_pass_all_who_hold_what_everybody_holds() -> None:
    index = PrefixIndex()
    for i in range(5_000):
        replica = FakeReplica(f"r{i}")
        replica.news = {1: True}
        index.hear(replica.report())
    assert [len(group) for group in index.matches((1, 2, 3), 0)] == [32]


def test_matches_come_by_how_much_they_hold() -> None:
    index = PrefixIndex()
    index.expect("x", "a", (1, 2, 3, 4, 5))
    index.expect("y", "b", (1,))
    assert list(index.matches((1, 2, 3, 4, 6), 0)) == [[Match("a", 4, 4)], [Match("b", 1, 0)]]
    assert list(index.matches((1, 2, 3, 4, 6), 1)) == [[Match("a", 4, 4)]]


def test_what_two_use_is_in_use_until_both_have_gone() -> None:
    index = PrefixIndex()
    chain = tuple(range(8))
    for name in ("x", "y"):
        index.expect(name, "a", chain)
    index.settle("x")
    assert list(index.matches(chain, 0)) == [[Match("a", 8, 8)]]
    index.settle("y")
    assert not list(index.matches(chain, 0))


def test_nothing_is_left_of_a_replica_that_was_dropped() -> None:
    index = PrefixIndex()
    index.expect("x", "a", tuple(range(8)))
    index.drop("a")
    index.settle("x")
    assert_consistent(index)
    assert len(index) == 0
    assert (index._tables, index._coming._counts) == ({}, {})
    assert (index._use._counts, index._expected) == ({}, {})


def test_a_look_up_ends_after_some_holders_though_each_holds_less_than_the_last() -> None:
    index = PrefixIndex()
    chain = tuple(range(100))
    for many in range(1, 101):
        index.expect(f"t{many}", f"r{many}", chain[:many])
    found = [match.replica for group in index.matches(chain, 0) for match in group]
    assert found == [f"r{many}" for many in range(100, 68, -1)]

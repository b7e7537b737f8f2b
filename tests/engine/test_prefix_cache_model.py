"""Any order of calls against the plain cache: same blocks, same finds, same evictions."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.blocks import NoCapacity
from engine.prefix_cache import BlockManager
from engine.prefix_hash import chain
from tests.engine.plain_cache import Content, PlainCache

SALTS = (b"", b"", b"", b"a")
# Few tokens and short ones, so that beginnings are often the same.
token = st.integers(0, 1)
prompts = st.lists(token, min_size=1, max_size=13)


@dataclass
class Run:
    """A request that holds blocks: its tokens, and how many have K and V."""

    tokens: list[int]
    salt: bytes
    done: int


class CacheAgainstPlain(RuleBasedStateMachine):
    """Drives both with the same calls, and keeps a memory that is written as requests compute."""

    @initialize(
        block_tokens=st.integers(1, 3),
        count=st.integers(3, 14),
        depths=st.sampled_from([None, None, {1, 2, 4}, {3}]),
    )
    def start(self, block_tokens: int, count: int, depths: set[int] | None) -> None:
        self.size = block_tokens
        self.depths = depths
        self.ids = range(100, 100 + count)
        self.real = BlockManager(block_tokens, self.ids, depths)
        self.plain = PlainCache(block_tokens, list(self.ids))
        self.runs: dict[int, Run] = {}
        self.memory: dict[int, Content] = {}
        self.told: set[int] = set()
        self.next_id = 0
        self.past: list[list[int]] = []

    @rule(prompt=prompts, salt=st.sampled_from(SALTS), reuse=st.sampled_from([True] * 5 + [False]))
    def allocate(self, prompt: list[int], salt: bytes, reuse: bool) -> None:
        self.next_id += 1
        id, free = self.next_id, self.real.free_blocks
        hits = self.plain.find(prompt, salt)
        found = self.real.look_up(prompt, salt)
        assert found.tokens == len(hits) * self.size
        assert set(found.held) == set(hits) & self.plain.held()
        expected = self.plain.allocate(id, prompt, salt, reuse)
        if expected is None:
            with pytest.raises(NoCapacity):
                self.real.allocate(id, prompt, salt, reuse)
            assert self.real.free_blocks == free
            assert self.real.look_up(prompt, salt) == found
            return
        cached = self.real.allocate(id, prompt, salt, reuse).cached_tokens
        assert cached == (found.tokens if reuse else 0) < len(prompt)
        table = list(self.real.block_table(id))
        assert table == expected
        for place in range(cached // self.size):
            end = (place + 1) * self.size
            assert self.memory[table[place]] == (salt, tuple(prompt[:end]))
        for block in table[cached // self.size :]:
            self.memory.pop(block, None)
        self.runs[id] = Run(list(prompt), salt, cached)

    @rule(data=st.data(), more=st.lists(token, max_size=6))
    def allocate_what_was_there(self, data: st.DataObject, more: list[int]) -> None:
        """A follow-up of another request, or the same once more."""
        known = self.past + [run.tokens for run in self.runs.values()]
        if known:
            self.allocate(data.draw(st.sampled_from(known)) + more, b"", True)

    @rule(prompt=prompts, salt=st.sampled_from(SALTS), copies=st.integers(1, 3))
    def several_of_one_prompt(self, prompt: list[int], salt: bytes, copies: int) -> None:
        """Each comes when the one before it is computed and still runs."""
        for _ in range(copies):
            self.allocate(prompt, salt, True)
            if self.next_id in self.runs:
                self.compute_to(self.next_id, len(prompt))

    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data: st.DataObject, count: int) -> None:
        """A piece of a prompt is computed and others are told."""
        if id := self.any(data):
            self.compute_to(id, min(len(self.runs[id].tokens), self.runs[id].done + count))

    def compute_to(self, id: int, upto: int) -> None:
        self.write(id, upto)
        self.real.computed(id, self.runs[id].tokens, upto)
        self.plain.computed(id, self.runs[id].tokens, upto)

    @rule(data=st.data(), more=st.lists(token, min_size=1, max_size=4))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        """Tokens are generated; nobody is told of their blocks before the end."""
        if id := self.any(data):
            run = self.runs[id]
            tokens = run.tokens + more
            if self.plain.grow(id, len(tokens)) is None:
                with pytest.raises(NoCapacity):
                    self.real.append_slot(id, len(tokens))
                return
            self.real.append_slot(id, len(tokens))
            run.tokens = tokens
            self.write(id, len(tokens) - 1)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if id := self.any(data):
            self.end(id)

    def end(self, id: int) -> None:
        run = self.runs.pop(id)
        self.past = [*self.past, run.tokens][-5:]
        self.real.release(id, run.tokens[: run.done])
        self.plain.release(id, run.tokens[: run.done])

    @rule()
    def listen(self) -> None:
        stored, removed = self.real.take_events()
        assert not set(stored) & set(removed)
        assert set(removed) <= self.told
        assert not set(stored) & self.told
        self.told = (self.told - set(removed)) | set(stored)
        assert self.told == self.found()

    @rule(most=st.integers(0, 14))
    def listen_from_the_start(self, most: int) -> None:
        """However little is told, who is told of a block is told of all before it."""
        some, told = self.real.held_prefixes(most), self.real.held_prefixes(99)
        self.told = set(told)
        assert self.told == self.found()
        assert some == told[:most]
        place = {key: at for at, key in enumerate(told)}
        for salt, tokens in self.plain.content.values():
            keys = [key for key in chain(tokens, self.size, salt) if key in place]
            assert [place[key] for key in keys] == sorted(place[key] for key in keys)

    def found(self) -> set[int]:
        """What others are to be told of."""
        return {
            chain(tokens, self.size, salt)[-1]
            for salt, tokens in self.plain.content.values()
            if self.depths is None or len(tokens) // self.size in self.depths
        }

    def any(self, data: st.DataObject) -> int | None:
        return data.draw(st.sampled_from(list(self.runs))) if self.runs else None

    def write(self, id: int, upto: int) -> None:
        """Fill memory as a runner would: never before what is computed already."""
        run, table = self.runs[id], self.real.block_table(id)
        for position in range(run.done, upto):
            place = position // self.size
            self.memory[table[place]] = (run.salt, tuple(run.tokens[: position + 1]))
        run.done = max(run.done, upto)

    @invariant()
    def both_agree(self) -> None:
        self.real.audit()
        held = self.plain.held()
        assert self.real.free_blocks + len(held) == self.real.total_blocks == len(self.ids)
        assert self.real.cached_blocks == len([b for b in self.plain.content if b not in held])
        for block, content in self.plain.content.items():
            assert self.memory[block] == content
        for id in self.runs:
            assert list(self.real.block_table(id)) == self.plain.tables[id]

    def teardown(self) -> None:
        """Whatever happened before, every block comes back, and can be had."""
        if not hasattr(self, "real"):
            return
        for id in list(self.runs):
            self.end(id)
        assert self.real.free_blocks == self.real.total_blocks
        self.allocate([0] * (self.size * len(self.ids)), b"z", True)
        assert self.real.free_blocks == 0
        self.listen()


CacheAgainstPlain.TestCase.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None
)
TestCacheAgainstPlain = CacheAgainstPlain.TestCase

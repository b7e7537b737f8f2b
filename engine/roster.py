"""The roster: who waits, who runs, and what they add up to.

Invariants between calls:
- A request is in exactly one of the waiting queue and the running list.
- A waiting request holds no block and has c = 0; a running one has a block table. Host
  memory, if there is any to swap to, holds blocks of waiting ones only.
- The running list is sorted by rank.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile
from operator import attrgetter

from engine.blocks import Allocation, BlockSpace, Found, PrefixCache, blocks_for
from engine.plan import RequestState
from engine.swap import SwapSpace
from engine.waiting import WaitingQueue

_NOTHING = Found()
_by_rank = attrgetter("rank")


class Roster:
    """All unfinished requests.

    Attributes:
        states: every one of them, by id; not to be changed from outside.
        running: those that hold blocks, highest rank first; not to be changed from outside.
        waiting_blocks: blocks that the waiting ones need for the tokens they have so far.
        fresh: waiting ones that never ran.
        preemptions: how often a running one was put back into the queue.
        admission_preemptions: how often that was to make way for a newcomer.
        gap_admissions: how often one was seated before others that rank before it.
        queried_tokens: tokens that were looked for in a prefix cache, at first seatings.
        found_tokens: those of them whose K and V were there when it first computed something.
        restored_tokens: tokens that came back from host memory, not computed again.
    """

    def __init__(self, blocks: BlockSpace, swap: SwapSpace | None = None) -> None:
        """Start with nobody.

        Args:
            blocks: the memory that running requests hold.
            swap: where preempted ones may keep what they have computed.
        """
        self.states: dict[int, RequestState] = {}
        self.running: list[RequestState] = []
        self.waiting_blocks = 0
        self.fresh = 0
        self.preemptions = 0
        self.admission_preemptions = 0
        self.gap_admissions = 0
        self.queried_tokens = 0
        self.found_tokens = 0
        self.restored_tokens = 0
        self._blocks = blocks
        self._swap = swap
        self._cache = blocks if isinstance(blocks, PrefixCache) else None
        self._queue = WaitingQueue()

    @property
    def waiting(self) -> int:
        """How many wait, new and preempted."""
        return len(self._queue)

    def head(self) -> RequestState | None:
        """Return the highest-ranked waiting request, None if nobody waits."""
        return self.states[self._queue.peek()] if self._queue else None

    def join(self, state: RequestState) -> None:
        """Queue a new request."""
        self.states[state.id] = state
        self._enqueue(state)

    def leave(self, id: int) -> None:
        """Forget a request, wherever it is; its blocks are free. An unknown one is left alone."""
        state = self.states.pop(id, None)
        if state is None:
            return
        state.gone = True
        if state.seated:
            self._unseat(state)
        else:
            self._queue.discard(id)
            self._count(state, -1)
            if self._swap is not None:
                self._swap.drop(id)

    def look_up(self, state: RequestState) -> Found:
        """Return what a waiting request need not compute: what a cache or host memory has."""
        found = _NOTHING
        if self._cache is not None and not state.skip_cache:
            found = self._cache.look_up(state.tokens, state.salt)
        kept = 0 if self._swap is None else self._swap.kept(state.id)
        # Nor need it wait for others to compute what it has.
        return replace(found, tokens=kept, coming=0) if kept > found.tokens else found

    def seat_head(self) -> None:
        """Move the highest-ranked waiting request to the running ones.

        Raises:
            NoCapacity: too few blocks are free for its tokens; it goes on waiting.
        """
        state = self.states[self._queue.peek()]
        allocation = self._allocate(state)
        self._queue.pop()
        self._seat(state, allocation)

    def take_out_head(self) -> None:
        """Take the highest-ranked waiting request out of the queue, until it is taken back."""
        self._queue.pop()

    def take_back(self, states: Iterable[RequestState]) -> None:
        """Put those back into the queue that were taken out of it."""
        for state in states:
            self._queue.push(state.rank, state.id)

    def first(self, count: int) -> list[RequestState]:
        """Return the highest-ranked waiting requests, at most ``count``."""
        return [self.states[id] for id in self._queue.first(count)]

    def seat_filler(self, state: RequestState, waiting: Iterable[RequestState]) -> None:
        """Seat a waiting request before others, the first of the queue, which it passes.

        Raises:
            NoCapacity: too few blocks are free for its tokens; nothing has changed.
        """
        allocation = self._allocate(state)
        self._queue.take(state.id)
        self._seat(state, allocation)
        self.gap_admissions += 1
        for other in takewhile(lambda other: other is not state, waiting):
            other.passed += 1

    def _seat(self, state: RequestState, allocation: Allocation) -> None:
        self._count(state, -1)
        there = allocation.cached_tokens
        if self._swap is not None:
            there = self._swap.restore(state.id, there, self._blocks.block_table(state.id))
            self.restored_tokens += there - allocation.cached_tokens
        # Whatever there is, one token is left to compute: its logits are needed.
        state.computed = state.there = min(there, len(state.tokens) - 1)
        # One that was preempted before any step computed something of it begins anew.
        if self._cache is not None and state.high == 0 and not state.skip_cache:
            self.queried_tokens += 0 if state.preempted else len(state.tokens)
            self.found_tokens += state.computed - state.cached
            state.cached = state.computed
        state.seated = True
        self.measure(state, len(state.tokens))
        insort(self.running, state, key=_by_rank)

    def computed(self, state: RequestState) -> None:
        """Let others find what has been computed of a running request."""
        if self._cache is not None:
            self._cache.computed(state.id, state.tokens, state.computed)

    def measure(self, state: RequestState, total: int) -> None:
        """Note how far a running request can go, whose table has room for ``total`` tokens."""
        size = self._blocks.block_tokens
        state.reach = min(blocks_for(total, size) * size, state.end - 1)

    def preempt(self, state: RequestState) -> None:
        """Put a running request back into the queue, with nothing computed but what is swapped."""
        if self._swap is not None:
            self._swap.keep(state.id, state.computed, self._blocks.block_table(state.id))
        self._unseat(state)
        if state.computed > state.there:
            state.high = max(state.high, state.computed)
        if state.computed - state.flying >= state.prompt_len:
            # What its prompt was computed for in full has been told.
            state.skip_cache = False
        state.computed = 0
        state.preempted = True
        self.preemptions += 1
        self._enqueue(state)

    def make_way(self, state: RequestState) -> None:
        """Preempt a running request for a newcomer; it is counted with both."""
        self.preempt(state)
        state.admission_preemptions += 1
        self.admission_preemptions += 1

    def _allocate(self, state: RequestState) -> Allocation:
        if self._cache is None:
            return self._blocks.allocate(state.id, state.tokens)
        return self._cache.allocate(state.id, state.tokens, state.salt, not state.skip_cache)

    def _enqueue(self, state: RequestState) -> None:
        self._queue.push(state.rank, state.id)
        self._count(state, 1)

    def _count(self, state: RequestState, sign: int) -> None:
        self.waiting_blocks += sign * blocks_for(len(state.tokens), self._blocks.block_tokens)
        self.fresh += sign * (not state.preempted)

    def _unseat(self, state: RequestState) -> None:
        del self.running[bisect_left(self.running, state.rank, key=_by_rank)]
        state.seated = False
        # What a step in flight computes does not exist yet, and never will if it fails.
        self._blocks.release(state.id, state.tokens[: state.computed - state.flying])

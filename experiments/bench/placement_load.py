"""Both placement policies under the same load: real router, schedulers and prefix caches.

Only the model is missing, and time with it: a step takes as long as one of the demo model does on
two cores, and events come in the order of that time. So it is the same on any machine.
"""

import heapq
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from engine.prefill import Chunked
from engine.prefix_cache import BlockManager
from engine.prefix_hash import chain
from engine.scheduler import Finished, Request, Scheduler, SchedulerConfig, StepOutput, Token
from experiments.bench.table import Row
from router.core import RouterConfig, RouterCore
from router.policy import MostFreeBlocks, PlacementPolicy
from router.prefix_affinity import PrefixAffinity
from router.prefix_depths import DEPTHS, thinned
from router.report import Report
from router.ticket import Decision, Placement, Ticket

REPLICAS, BLOCK, BLOCKS, SEATS = 4, 16, 1_500, 32
STEP_S, PREFILL_S, DECODE_S = 0.007, 0.0004, 0.0007
"""What a step costs, each token of a prompt in it, and each sequence that decodes."""

SLICE, QUEUED, SECONDS = 512, 1_000, 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """Conversations that begin at random times.

    Attributes:
        name: of the load.
        rate: conversations that begin in a second.
        beginnings: how many different ones there are; each conversation has one of them.
        beginning: tokens of it.
        turns: of a conversation, one after the other.
        says: tokens that a user adds in a turn.
        hears: tokens of an answer.
        pause_s: between an answer and the next turn, on average.
    """

    name: str
    rate: float
    beginnings: int
    beginning: int
    turns: int
    says: int
    hears: int
    pause_s: float


LOADS: Final = (
    Load("chats of 6 turns", 1.5, 1, 200, 6, 60, 100, 10.0),
    Load("agents of 12 turns", 0.4, 4, 1_200, 12, 150, 60, 2.0),
    Load("questions about 16 documents", 3.0, 16, 3_000, 1, 30, 60, 0.0),
)


@dataclass(slots=True)
class Turn:
    """A request under way."""

    key: str
    prompt: list[int]
    asked: float
    done: Callable[[list[int]], None]
    answer: list[int] = field(default_factory=list)


class Node:
    """One replica: a scheduler over a prefix cache, whose steps take time."""

    def __init__(self, name: str, world: "World") -> None:
        self._name, self._world = name, world
        config = SchedulerConfig(max_seqs=SEATS, max_waiting=QUEUED)
        self._cache = BlockManager(BLOCK, range(BLOCKS), frozenset(DEPTHS))
        self._scheduler = Scheduler(config, self._cache, Chunked(SLICE))
        self._turns: dict[int, Turn] = {}
        self._admitted: list[str] = []
        self._ended: list[str] = []
        self._busy = False
        self._seq = 0

    @property
    def found(self) -> tuple[int, int]:
        """Tokens of prompts that were found in the cache, and that were looked for."""
        stats = self._scheduler.stats()
        return stats.found_tokens, stats.queried_tokens

    def take(self, turn: Turn, hears: int) -> None:
        self._turns[self._scheduler.add(Request(turn.prompt, hears))] = turn
        self._admitted.append(turn.key)
        if not self._busy:
            self._step()

    def _step(self) -> None:
        self._busy = self._scheduler.has_unfinished()
        if not self._busy:
            return
        plan = self._scheduler.schedule()
        rows = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        prefilled = sum(chunk.len for chunk in plan.prefill)
        took = STEP_S + PREFILL_S * prefilled + DECODE_S * len(plan.decode)
        self._world.after(took, lambda: self._stepped(rows))

    def _stepped(self, rows: list[int]) -> None:
        outputs = [StepOutput(id, self._world.token()) for id in rows]
        for event in self._scheduler.on_step(outputs):
            turn = self._turns[event.id]
            if isinstance(event, Token):
                if not turn.answer:
                    self._world.first_token(turn)
                turn.answer.append(event.token)
            elif isinstance(event, Finished):
                del self._turns[event.id]
                self._ended.append(turn.key)
                self._world.ended(turn)
        self._world.heard(self.report())
        self._step()

    def report(self) -> Report:
        stats = self._scheduler.stats()
        stored, removed = self._cache.take_events()
        self._seq += 1
        report = Report(
            replica=self._name,
            seq=self._seq,
            total_blocks=stats.total_blocks,
            free_blocks=stats.free_blocks,
            running=stats.running,
            max_seqs=SEATS,
            waiting=stats.waiting,
            waiting_blocks=stats.waiting_blocks,
            max_waiting=QUEUED,
            admitted=tuple(self._admitted),
            ended=tuple(self._ended),
            held=() if self._seq == 1 else None,
            stored=tuple(stored),
            removed=tuple(removed),
        )
        self._admitted, self._ended = [], []
        return report


class World:
    """Time, users, the router, and what comes of it."""

    def __init__(self, load: Load, placement: PlacementPolicy) -> None:
        self._load, self._rng, self.now = load, Random(1), 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        # Nobody sends heartbeats here, so silence means nothing.
        config = RouterConfig(max_queued=QUEUED, suspect_after_s=math.inf, lost_after_s=math.inf)
        self._core = RouterCore(config, lambda: self.now, Random(0), placement)
        self.nodes = {f"r{i}": Node(f"r{i}", self) for i in range(REPLICAS)}
        self._turns: dict[str, Turn] = {}
        self.waits: list[float] = []
        for node in self.nodes.values():
            self.heard(node.report())
        self._beginnings = [self._text(load.beginning) for _ in range(load.beginnings)]

    def run(self) -> None:
        """Let conversations begin for a while, and all of them end."""
        at = self._rng.expovariate(self._load.rate)
        while at < SECONDS:
            self.after(at, self._begin)
            at += self._rng.expovariate(self._load.rate)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now + seconds, self._serial, event))

    def token(self) -> int:
        return self._rng.randrange(50_000)

    def _text(self, tokens: int) -> list[int]:
        return [self.token() for _ in range(tokens)]

    def _begin(self) -> None:
        # Drawn from a generator of its own: both policies are to see the same users.
        rng = Random(self._serial)
        self._say(list(rng.choice(self._beginnings)), 1)

    def _say(self, history: list[int], turn: int) -> None:
        prompt = history + self._text(self._load.says)
        self._serial += 1
        key = f"t{self._serial}"

        def done(answer: list[int]) -> None:
            if turn < self._load.turns:
                pause = self._rng.expovariate(1 / self._load.pause_s)
                self.after(pause, lambda: self._say(prompt + answer, turn + 1))

        self._turns[key] = Turn(key, prompt, self.now, done)
        most = -(-(len(prompt) + self._load.hears) // BLOCK)
        prefix = thinned(chain(prompt, BLOCK))
        now = -(-len(prompt) // BLOCK)
        arrival = round(1_000 * self.now)
        self._settle(self._core.acquire(Ticket(key, 0, arrival, now, most, prefix=prefix)))

    def _settle(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            assert isinstance(decision, Placement), decision
            turn = self._turns[decision.ticket]
            self.nodes[decision.replica].take(turn, self._load.hears)

    def heard(self, report: Report) -> None:
        self._settle(self._core.report(report))

    def first_token(self, turn: Turn) -> None:
        self.waits.append(self.now - turn.asked)

    def ended(self, turn: Turn) -> None:
        del self._turns[turn.key]
        turn.done(turn.answer)
        self._settle(self._core.release(turn.key, finished=True))


def measure() -> Iterator[Row]:
    """Yield the mean time to the first token for each load and policy, and what made it so."""
    for load in LOADS:
        for name, placement in (
            ("most free blocks", MostFreeBlocks()),
            ("prefix affinity", PrefixAffinity()),
        ):
            world = World(load, placement)
            world.run()
            nodes = world.nodes.values()
            found, asked = (sum(each) for each in zip(*(node.found for node in nodes), strict=True))
            waits = sorted(world.waits)
            late = 1_000 * waits[len(waits) * 99 // 100]
            note = (
                f"simulated; 99 of 100 within {late:,.0f} ms; {found / asked:.0%} found in caches"
            )
            what = f"first token, {load.name}: {name}"
            yield Row(what, 1_000 * statistics.mean(waits), "ms", note)

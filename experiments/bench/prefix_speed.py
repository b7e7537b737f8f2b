"""What the prefix cache saves where requests have a beginning in common, and costs where not.

Two engines over the same model, with the cache and without, are given the same loads in turn,
so that their ratios hold where their milliseconds do not. No two runs have prompts in common.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.blocks import BlockSpace, FreeListBlocks
from engine.build import build_engine
from engine.engine_config import EngineConfig
from engine.prefill import Chunked
from engine.prefix_cache import BlockManager
from engine.scheduler import Request, Scheduler, SchedulerConfig, StepOutput
from engine.submission import StepReport, Submission
from experiments.bench.engine_speed import greedy, random_prompt
from experiments.bench.table import Row

BLOCK, OUTPUT = 16, 32
REQUESTS, SYSTEM, OWN = 8, 512, 64
CHATS, TURNS, OPENING, TURN = 4, 4, 256, 48
DECODES, PROMPT, STEPS, WARM_UP = 256, 512, 300, 20


@dataclass(frozen=True, slots=True)
class Run:
    """What one load came to.

    Attributes:
        first: median seconds from a request's submission to its first token.
        rate: output tokens a second over the whole load, prefills included.
        asked, found: tokens of prompts, and those of them that the cache held.
    """

    first: float
    rate: float
    asked: int
    found: int


def measure(model: str | None, threads: int | None, repeats: int) -> Iterator[Row]:
    """Yield the ratios of first token and output rate for each load, and what a step costs."""
    yield from _steps(repeats)
    rigs = {on: _Rig(model, threads, on) for on in (False, True)}
    loads: Sequence[tuple[str, str, Callable[[_Rig, random.Random], Run]]] = (
        ("shared prefix", f"{REQUESTS} at once, {SYSTEM} tokens in common, {OWN} own", _shared),
        ("chats", f"{CHATS} chats of {TURNS} turns", _chats),
        ("nothing in common", f"{REQUESTS} at once, {SYSTEM // 2} tokens", _apart),
    )
    for rig in rigs.values():  # the first run of an engine is slower than all others
        _apart(rig, random.Random(-1))
    for name, note, load in loads:
        runs: dict[bool, list[Run]] = {False: [], True: []}
        for seed in range(repeats):
            for on, rig in rigs.items():
                runs[on].append(load(rig, random.Random(f"{name} {seed}")))
        yield from _rows(name, note, runs[False], runs[True])


def _rows(name: str, note: str, off: Sequence[Run], on: Sequence[Run]) -> Iterator[Row]:
    pairs = list(zip(off, on, strict=True))
    first = statistics.median(a.first for a in off)
    yield Row(f"{name}: first token, no cache", first * 1e3, "ms", note)
    saved = statistics.median(b.first / a.first for a, b in pairs)
    yield Row(f"{name}: first token, cache", 100 * saved, "% of no cache")
    yield Row(f"{name}: output, no cache", statistics.median(a.rate for a in off), "tokens/s")
    gained = statistics.median(b.rate / a.rate for a, b in pairs)
    yield Row(f"{name}: output, cache", 100 * gained, "% of no cache")
    found = 100 * sum(run.found for run in on) / sum(run.asked for run in on)
    yield Row(f"{name}: found", found, "% of prompt tokens")


# ---- loads ----------------------------------------------------------------------------------


def _shared(rig: "_Rig", rng: random.Random) -> Run:
    system = rig.tokens(rng, SYSTEM)
    return rig.run([[system + rig.tokens(rng, OWN)] for _ in range(REQUESTS)])


def _apart(rig: "_Rig", rng: random.Random) -> Run:
    return rig.run([[rig.tokens(rng, SYSTEM // 2)] for _ in range(REQUESTS)])


def _chats(rig: "_Rig", rng: random.Random) -> Run:
    lengths = [OPENING, *[TURN] * (TURNS - 1)]
    return rig.run([[rig.tokens(rng, length) for length in lengths] for _ in range(CHATS)])


class _Rig:
    """One engine, and the conversations that it is given."""

    def __init__(self, model: str | None, threads: int | None, cache: bool) -> None:
        config = EngineConfig(
            model=model,
            threads=threads,
            prefix_cache=cache,
            block_tokens=BLOCK,
            num_blocks=4096,
        )
        self._report: StepReport | None = None
        self._engine, self._info = build_engine(config, self._take)

    def tokens(self, rng: random.Random, count: int) -> list[int]:
        """Return tokens at random."""
        return random_prompt(rng, count, self._info.model.vocab_size)

    def run(self, chats: Sequence[list[list[int]]]) -> Run:
        """Let all conversations go on side by side, each turn when the one before has ended.

        Args:
            chats: what each says, turn by turn; answers come between.
        """
        before = self._engine.stats()
        began = time.perf_counter()
        said: dict[str, list[int]] = {}
        left: dict[str, list[list[int]]] = {}
        sent: dict[str, float] = {}
        first: list[float] = []
        count = asked = 0

        def say(key: str) -> None:
            nonlocal asked
            said[key] += left[key].pop(0)
            asked += len(said[key])
            sent[key] = time.perf_counter()
            self._engine.submit(Submission(key, tuple(said[key]), greedy(OUTPUT)))

        for number, chat in enumerate(chats):
            key = str(number)
            said[key], left[key] = [], list(chat)
            say(key)
        while self._engine.keys():
            self._engine.step()
            now = time.perf_counter()
            for delta in self._report.deltas if self._report else ():
                if delta.key in sent:
                    first.append(now - sent.pop(delta.key))
                said[delta.key] += delta.tokens
                count += len(delta.tokens)
                if delta.finish is not None and left[delta.key]:
                    say(delta.key)
        rate = count / (time.perf_counter() - began)
        found = self._engine.stats().found_tokens - before.found_tokens
        return Run(statistics.median(first), rate, asked, found)

    def _take(self, report: StepReport) -> None:
        self._report = report


# ---- the books ------------------------------------------------------------------------------


def _steps(repeats: int) -> Iterator[Row]:
    kinds: dict[str, Callable[[int, Sequence[int]], BlockSpace]] = {
        "no cache": FreeListBlocks,
        "cache": BlockManager,
    }
    steps: dict[str, list[float]] = {name: [] for name in kinds}
    admissions: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, kind in kinds.items():
            admitted, step = _step_us(kind(BLOCK, range(DECODES * (PROMPT + 2 * STEPS) // BLOCK)))
            admissions[name].append(admitted)
            steps[name].append(step)
    for name in kinds:
        note = f"schedule + on_step, {DECODES} decodes"
        yield Row(f"a step, {name}", statistics.median(steps[name]), "µs", note)
    for name in kinds:
        note = f"of {PROMPT} tokens, nothing found, until its prompt is computed"
        yield Row(f"a request, {name}", statistics.median(admissions[name]), "µs", note)


def _step_us(blocks: BlockSpace) -> tuple[float, float]:
    """Return µs to admit a request and take its prompt's results, and µs of a step of decodes."""
    config = SchedulerConfig(
        max_seqs=DECODES, max_batch_tokens=DECODES * PROMPT, max_waiting=DECODES
    )
    scheduler = Scheduler(config, blocks, Chunked(PROMPT))
    rng = random.Random(0)
    for _ in range(DECODES):
        scheduler.add(Request(random_prompt(rng, PROMPT, 50_000), STEPS + WARM_UP + 9))
    took: list[float] = []
    for _ in range(1 + WARM_UP + STEPS):
        begin = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter() - begin
        outputs = [StepOutput(chunk.id, 1) for chunk in plan.prefill]
        outputs += [StepOutput(id, 1) for id in plan.decode]
        begin = time.perf_counter()
        scheduler.on_step(outputs)
        took.append(planned + time.perf_counter() - begin)
    return took[0] / DECODES * 1e6, statistics.median(took[1 + WARM_UP :]) * 1e6

"""How long running streams wait for their next token while a long prompt is admitted.

Each way of taking prompts gets an engine of its own over the same model. They run in turn
on one machine, so that their ratios hold where their milliseconds do not.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from engine.build import build_engine
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.submission import StepReport, Submission
from experiments.bench.engine_speed import greedy, random_prompt
from experiments.bench.table import Row

STREAMS, STREAM_PROMPT, LONG_PROMPT, QUIET_STEPS = 8, 64, 2000, 12
TIMES_QUIET = 3.0
CHUNKS: Mapping[str, int | None] = {"whole": None, "chunks of 512": 512, "chunks of 128": 128}


@dataclass(frozen=True, slots=True)
class Run:
    """What one run found, in seconds.

    Attributes:
        quiet: the median gap between a stream's tokens before the long prompt comes.
        most: what nine of ten gaps keep to while it is admitted, up to its first token.
        longest: the longest of those gaps.
        first: from its submission to its first token.
    """

    quiet: float
    most: float
    longest: float
    first: float


@dataclass(slots=True)
class Times:
    """When each request got its tokens."""

    at: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, report: StepReport) -> None:
        """Take an engine's report."""
        now = time.perf_counter()
        for delta in report.deltas:
            self.at[delta.key] += [now] * len(delta.tokens)


def measure(model: str | None, threads: int | None, repeats: int) -> Iterator[Row]:
    """Yield gaps and the time to the first token, for each way of taking prompts."""
    rigs = {name: _Rig(model, threads, chunk) for name, chunk in CHUNKS.items()}
    # The first run of an engine is slower than all others.
    quiet = statistics.median(rig.run(-1).quiet for rig in rigs.values())
    paced = _Rig(model, threads, 512, TIMES_QUIET * quiet)
    paced.run(-1)
    rigs["paced"] = paced
    runs: dict[str, list[Run]] = {name: [] for name in rigs}
    for seed in range(repeats):
        for name, rig in rigs.items():
            runs[name].append(rig.run(seed))
    yield Row(
        "gap aimed at, paced", TIMES_QUIET * quiet * 1e3, "ms", f"{TIMES_QUIET:g} times no prompt"
    )
    yield from _rows(runs)


def _rows(runs: Mapping[str, list[Run]]) -> Iterator[Row]:
    note = f"{STREAMS} streams, prompt of {LONG_PROMPT:,}"
    quiet = statistics.median(run.quiet for made in runs.values() for run in made)
    yield Row("gap, no prompt", quiet * 1e3, "ms", f"{STREAMS} streams, median")
    whole: float | None = None
    for name, made in runs.items():
        longest = statistics.median(run.longest for run in made)
        first = statistics.median(run.first for run in made)
        whole = longest if whole is None else whole
        yield Row(f"longest gap, {name}", longest * 1e3, "ms", note)
        yield Row(f"longest gap, {name}", 100 * longest / whole, "% of whole")
        most = statistics.median(run.most for run in made)
        yield Row(f"9 of 10 gaps, {name}", most * 1e3, "ms", "at most")
        yield Row(f"its first token, {name}", first * 1e3, "ms", note)


class _Rig:
    """One engine, and the load that it is given."""

    def __init__(
        self, model: str | None, threads: int | None, chunk: int | None, target: float | None = None
    ) -> None:
        self._times = Times()
        tokens = LONG_PROMPT + STREAMS * (STREAM_PROMPT + LONG_PROMPT)
        config = EngineConfig(
            model=model,
            threads=threads,
            prefill_chunk=chunk,
            target_tpot_ms=None if target is None else target * 1e3,
            block_tokens=16,
            num_blocks=tokens // 16,
            max_batch_tokens=LONG_PROMPT + 48,
        )
        self._engine: Engine
        self._engine, self._info = build_engine(config, self._times)

    def run(self, seed: int) -> Run:
        """Let the streams run, add the long prompt, and leave the engine as it was."""
        engine, at = self._engine, self._times.at
        at.clear()
        rng = random.Random(seed)
        vocab = self._info.model.vocab_size
        streams = [f"stream {i}" for i in range(STREAMS)]
        for key in streams:
            prompt = tuple(random_prompt(rng, STREAM_PROMPT, vocab))
            engine.submit(Submission(key, prompt, greedy(LONG_PROMPT)))
        while any(len(at[key]) < QUIET_STEPS for key in streams):
            engine.step()
        quiet = [gap for key in streams for gap in _gaps(at[key][2:])]
        seen = {key: len(at[key]) for key in streams}
        long = tuple(random_prompt(rng, LONG_PROMPT, vocab))
        begin = time.perf_counter()
        engine.submit(Submission("long", long, greedy(2)))
        while len(at["long"]) < 2:  # the gap that its last piece makes ends one step later
            engine.step()
        gaps = sorted(gap for key in streams for gap in _gaps(at[key][seen[key] - 1 :]))
        first = at["long"][0] - begin
        for key in (*streams, "long"):
            engine.abort(key)
        return Run(statistics.median(quiet), gaps[int(0.9 * len(gaps))], gaps[-1], first)


def _gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]

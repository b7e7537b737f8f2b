"""What memory pressure costs: preempted requests computed again, against swapped.

All engines run the same requests in turn on one machine, in a pool that is too small for
them together, so that their ratios hold where their tokens/s do not.
"""

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from engine.build import build_engine
from engine.engine_config import EngineConfig
from engine.submission import Submission
from experiments.bench.engine_speed import greedy, random_prompt
from experiments.bench.table import Row

REQUESTS, PROMPT, OUTPUT, BLOCK = 6, 256, 64, 16
NEEDED = REQUESTS * (PROMPT + OUTPUT) // BLOCK
TIGHT = (REQUESTS * PROMPT // BLOCK + NEEDED) // 2  # all can begin, and not all can end
WAYS: dict[str, dict[str, Any]] = {
    "room for all": {"num_blocks": NEEDED, "prefix_cache": False},
    "computed again": {"num_blocks": TIGHT, "prefix_cache": False},
    "swapped": {"num_blocks": TIGHT, "prefix_cache": False, "swap_gib": 0.25},
    "prefix cache": {"num_blocks": TIGHT, "prefix_cache": True},
    "prefix cache, swapped": {"num_blocks": TIGHT, "prefix_cache": True, "swap_gib": 0.25},
}


def measure(model: str | None, threads: int | None, repeats: int) -> Iterator[Row]:
    """Yield output tokens/s of each way, and the tokens that it computed again."""
    engines = {
        name: build_engine(
            EngineConfig(model=model, threads=threads, block_tokens=BLOCK, **way), lambda _: None
        )
        for name, way in WAYS.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for seed in range(-1, repeats):  # the first run of an engine is slower than all others
        for name, (engine, info) in engines.items():
            rng = random.Random(seed)
            for i in range(REQUESTS):
                prompt = tuple(random_prompt(rng, PROMPT, info.model.vocab_size))
                engine.submit(Submission(str(i), prompt, greedy(OUTPUT)))
            begin = time.perf_counter()
            while engine.keys():
                engine.step()
            rates[name].append(REQUESTS * OUTPUT / (time.perf_counter() - begin))
    note = f"{REQUESTS} requests, prompt {PROMPT}, output {OUTPUT}"
    for name, made in rates.items():
        yield Row(f"preempted: {name}", statistics.median(made[1:]), "output tokens/s", note)
        stats = engines[name][0].stats()
        each = f"{stats.preemptions / (repeats + 1):.0f} preemptions"
        again = stats.recomputed_tokens / (repeats + 1)
        yield Row(f"computed again: {name}", again, "tokens a run", each)

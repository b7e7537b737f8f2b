"""Tokens a second of the bare engine, without Ray and HTTP."""

import random
import statistics
import time
from collections.abc import Iterator, Sequence

from engine.llm import LLM
from engine.request import SamplingParams
from experiments.bench.table import Row

PROMPT, OUTPUT, LONG_PROMPT = 128, 64, 1024


def random_prompt(rng: random.Random, length: int, vocab: int) -> list[int]:
    """Token ids that are nothing special in the demo model's vocabulary."""
    return [rng.randrange(100, vocab) for _ in range(length)]


def greedy(max_tokens: int) -> SamplingParams:
    """Exactly so many tokens."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def measure(
    model: str | None,
    dtypes: Sequence[str],
    concurrencies: Sequence[int],
    threads: int | None,
    repeats: int,
) -> Iterator[Row]:
    """Yield output tokens/s at each concurrency, and prefill tokens/s, for each dtype.

    The output rate counts the whole run, prefills included, as clients see it.
    """
    for dtype in dtypes:
        llm = LLM(model, dtype=dtype, threads=threads, prefill_chunk=512, prefix_cache=False)
        for count in concurrencies:
            rate = statistics.median(_output_rate(llm, count, seed) for seed in range(repeats))
            note = f"prompt {PROMPT}, output {OUTPUT}"
            yield Row(f"engine {dtype}, {count} concurrent", rate, "output tokens/s", note)
        rate = statistics.median(_prefill_rate(llm, seed) for seed in range(repeats))
        yield Row(f"engine {dtype}, prefill", rate, "prompt tokens/s", f"prompt {LONG_PROMPT}")


def _output_rate(llm: LLM, count: int, seed: int) -> float:
    rng = random.Random(seed)
    vocab = llm.info.model.vocab_size
    prompts = [random_prompt(rng, PROMPT, vocab) for _ in range(count)]
    begin = time.perf_counter()
    done = llm.generate(prompts, greedy(OUTPUT), progress=False)
    seconds = time.perf_counter() - begin
    return sum(len(answer.token_ids) for answer in done) / seconds


def _prefill_rate(llm: LLM, seed: int) -> float:
    prompt = random_prompt(random.Random(seed), LONG_PROMPT, llm.info.model.vocab_size)
    begin = time.perf_counter()
    llm.generate([prompt], greedy(1), progress=False)
    return LONG_PROMPT / (time.perf_counter() - begin)

"""What Ray Serve and HTTP cost: two replicas against as many bare engines.

Both sides run the same engines with one CPU thread each, alternately on one machine: while one
is measured the other is idle. CPU time is counted, not derived from speeds, so it holds for any
model.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from experiments.bench.bare import BareEngines, bare_engines
from experiments.bench.engine_speed import OUTPUT, PROMPT, random_prompt
from experiments.bench.http_load import Load
from experiments.bench.served import PARTS, Served, engine_threads, serve, used_by_parts
from experiments.bench.table import Row

REPLICAS, THREADS = 2, 1
RATE_STREAMS = (8, 32)
FIRST_TOKENS, SHORT_PROMPT = 30, 16
CPU_STREAMS, CPU_OUTPUT, IDLE_S = 64, 96, 10.0

_SERVER = ("--replicas", str(REPLICAS), "--threads", str(THREADS))


def measure(model: str | None, repeats: int) -> Iterator[Row]:
    """Yield first token and tokens/s, bare and through HTTP, and CPU time a token."""
    with bare_engines(model, REPLICAS, THREADS) as bare, serve(model, *_SERVER) as served:
        rng = random.Random(0)
        # Connections and caches are warm before anything is measured.
        asyncio.run(Load(served.url, _prompts(rng, bare, 8, SHORT_PROMPT), 8).run())
        yield from _first_token(bare, served, _prompts(rng, bare, FIRST_TOKENS, SHORT_PROMPT))
        for streams in RATE_STREAMS:
            # Each prompt once, or the prefix cache would be what is measured.
            loads = [_prompts(rng, bare, streams, PROMPT) for _ in range(repeats)]
            yield from _rate(bare, served, loads)
        prompts = _prompts(rng, bare, CPU_STREAMS, SHORT_PROMPT)
        yield from asyncio.run(_cpu(served, prompts))


def _prompts(rng: random.Random, bare: BareEngines, count: int, length: int) -> list[list[int]]:
    return [random_prompt(rng, length, bare.vocab) for _ in range(count)]


def _first_token(bare: BareEngines, served: Served, prompts: list[list[int]]) -> Iterator[Row]:
    bare_s, http_s = [], []
    for prompt in prompts:
        bare_s.append(bare.seconds([prompt], 1))
        load = Load(served.url, [prompt], 2)
        asyncio.run(load.run())
        http_s.append(load.streams[0].first_s)
    alone, through = statistics.median(bare_s), statistics.median(http_s)
    note = f"prompt {SHORT_PROMPT}, one client"
    yield Row("first token, bare engine", alone * 1e3, "ms", note)
    yield Row("first token, through HTTP", through * 1e3, "ms", note)
    yield Row("first token, HTTP adds", (through - alone) * 1e3, "ms")


def _rate(
    bare: BareEngines, served: Served, loads: Sequence[Sequence[Sequence[int]]]
) -> Iterator[Row]:
    sides: list[Callable[[Sequence[Sequence[int]]], float]] = [
        lambda prompts: bare.seconds(prompts, OUTPUT),
        lambda prompts: asyncio.run(Load(served.url, prompts, OUTPUT).run()),
    ]
    rates: list[list[float]] = [[], []]
    for at, prompts in enumerate(loads):
        for side in (0, 1) if at % 2 == 0 else (1, 0):
            rates[side].append(len(prompts) * OUTPUT / sides[side](prompts))
    alone, through = map(statistics.median, rates)
    # Within a round: from one round to the next a shared machine is another.
    kept = sorted(100 * http / own for own, http in zip(*rates, strict=True))
    name = f"{len(loads[0])} streams"
    note = f"{REPLICAS} engines of {THREADS} thread, prompt {PROMPT}, output {OUTPUT}"
    yield Row(f"tokens/s of {name}, bare engines", alone, "output tokens/s", note)
    yield Row(f"tokens/s of {name}, through HTTP", through, "output tokens/s", note)
    span = f"{kept[0]:.0f} to {kept[-1]:.0f} in {len(kept)} rounds"
    yield Row(f"tokens/s of {name}, HTTP keeps", statistics.median(kept), "%", span)


async def _cpu(served: Served, prompts: Sequence[Sequence[int]]) -> list[Row]:
    """CPU time of a token's way while all streams run; what idling costs is taken off."""
    idle_began, idle_before, before_s = time.perf_counter(), served.used(), served.used_s()
    await asyncio.sleep(IDLE_S)
    idle_s, idle_after = time.perf_counter() - idle_began, served.used()
    idling = 1e3 * (served.used_s() - before_s) / idle_s
    note = "all its processes, also beside the bare engines"
    idle_row = Row("CPU of an idle server", idling, "ms a second", note)
    load = Load(served.url, prompts, CPU_OUTPUT)
    task = asyncio.create_task(load.run())
    await _reached(load, task, 2)
    began, before, first = time.perf_counter(), served.used(), load.events
    await _reached(load, task, CPU_OUTPUT - 4)
    seconds, after, last = time.perf_counter() - began, served.used(), load.events
    await task
    # Tokens whose text does not show yet have no event of their own.
    tokens = (last - first) * load.tokens / load.events
    engines = engine_threads(before, after)
    idle, spent = (
        used_by_parts(idle_before, idle_after, engines),
        used_by_parts(before, after, engines),
    )
    each = {part: (spent[part] - idle[part] / idle_s * seconds) / tokens / 1e3 for part in PARTS}
    note = f"{len(prompts)} streams, {tokens / seconds:,.0f} tokens/s"
    return [idle_row, *_cpu_rows(each, note)]


def _cpu_rows(each: dict[str, float], note: str) -> Iterator[Row]:
    for part in PARTS:
        own = "replicas beside the engine" if part == "Replica" else part
        yield Row(f"CPU a token, {own}", each[part], "µs", note)
    yield Row("CPU a token, gateway and channel", sum(each.values()), "µs", "sum of these")


async def _reached(load: Load, task: "asyncio.Task[float]", events: int) -> None:
    """Wait until each stream has so many events, or the first has ended."""
    while min(one.events for one in load.streams) < events and not any(
        one.tokens for one in load.streams
    ):
        if task.done():
            task.result()
            return
        await asyncio.sleep(0.005)

"""What Ray Serve and HTTP cost: the bare engine against the same engine behind them.

Both sides run one engine with one CPU thread, alternately on one machine: while one is
measured the other is idle.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from engine.llm import LLM
from experiments.bench.engine_speed import OUTPUT, PROMPT, greedy, random_prompt
from experiments.bench.table import Row

THREADS, CONCURRENT, FIRST_TOKENS, SHORT_PROMPT = 1, 8, 30, 16
START_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 60.0


def measure(model: str | None, repeats: int) -> Iterator[Row]:
    """Yield time to the first token and tokens/s, bare and through HTTP, and what differs."""
    llm = LLM(model, threads=THREADS, prefill_chunk=512)
    vocab = llm.info.model.vocab_size
    rng = random.Random(0)
    shorts = [random_prompt(rng, SHORT_PROMPT, vocab) for _ in range(FIRST_TOKENS)]
    loads = [random_prompt(rng, PROMPT, vocab) for _ in range(CONCURRENT)]
    with _server(model) as url:
        bare_first, http_first, bare_rate, http_rate = [], [], [], []
        asyncio.run(_http_rate(url, loads))  # connections and caches warm
        for prompt in shorts:
            bare_first.append(_bare_first(llm, prompt))
            http_first.append(asyncio.run(_http_first(url, prompt)))
        for _ in range(repeats):
            bare_rate.append(_bare_rate(llm, loads))
            http_rate.append(asyncio.run(_http_rate(url, loads)))
    bare, through = statistics.median(bare_first), statistics.median(http_first)
    note = f"prompt {SHORT_PROMPT}, one client"
    yield Row("first token, bare engine", bare * 1e3, "ms", note)
    yield Row("first token, through HTTP", through * 1e3, "ms", note)
    yield Row("first token, HTTP adds", (through - bare) * 1e3, "ms")
    bare, through = statistics.median(bare_rate), statistics.median(http_rate)
    note = f"{CONCURRENT} streams, prompt {PROMPT}, output {OUTPUT}"
    yield Row("tokens/s, bare engine", bare, "output tokens/s", note)
    yield Row("tokens/s, through HTTP", through, "output tokens/s", note)
    yield Row("tokens/s, HTTP keeps", 100 * through / bare, "%")


def _bare_first(llm: LLM, prompt: list[int]) -> float:
    begin = time.perf_counter()
    llm.generate([prompt], greedy(1), progress=False)
    return time.perf_counter() - begin


def _bare_rate(llm: LLM, prompts: list[list[int]]) -> float:
    begin = time.perf_counter()
    llm.generate(prompts, greedy(OUTPUT), progress=False)
    return len(prompts) * OUTPUT / (time.perf_counter() - begin)


def _body(prompt: list[int], max_tokens: int) -> dict[str, object]:
    return {
        "model": "bench",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


async def _stream(
    client: httpx.AsyncClient, url: str, body: dict[str, object]
) -> tuple[float, int]:
    """Seconds to the first chunk with text, and how many tokens the answer had."""
    begin, first = time.perf_counter(), None
    body = {**body, "stream_options": {"include_usage": True}}
    tokens = 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if first is None:
                first = time.perf_counter() - begin
            if usage := json.loads(line.removeprefix("data: ")).get("usage"):
                tokens = usage["completion_tokens"]
    if first is None or tokens == 0:
        raise RuntimeError("the stream ended without a token")
    return first, tokens


async def _http_first(url: str, prompt: list[int]) -> float:
    async with httpx.AsyncClient(timeout=60) as client:
        await client.get(f"{url}/health")  # the connection is not what is measured
        return (await _stream(client, url, _body(prompt, 2)))[0]


async def _http_rate(url: str, prompts: list[list[int]]) -> float:
    async with httpx.AsyncClient(timeout=120) as client:
        begin = time.perf_counter()
        streams = (_stream(client, url, _body(prompt, OUTPUT)) for prompt in prompts)
        tokens = sum(count for _, count in await asyncio.gather(*streams))
        return tokens / (time.perf_counter() - begin)


@contextlib.contextmanager
def _server(model: str | None) -> Iterator[str]:
    """``tidegate serve`` with one replica on a free port; its URL once it is ready."""
    command = [sys.executable, "-m", "deployments.cli", "serve", *([model] if model else [])]
    command += ["--replicas", "1", "--port", str(_free_port()), "--served-model-name", "bench"]
    command += ["--threads", str(THREADS)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield _wait_ready(process, log)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"http://[\w.]+:\d+", log.read_text()):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{found[0]}/health").status_code == 200:
                    return found[0]
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")

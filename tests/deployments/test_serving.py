"""The whole system on a real model: two replicas, one router, HTTP in front."""

import asyncio
import concurrent.futures
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from tests.deployments.conftest import Server, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(300)]

MODEL = "SmolLM2-135M-Instruct"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def server(small_pools: Server) -> Server:
    eventually(small_pools.idle)
    return small_pools


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def body(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": 1, **more}


async def streamed(http: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    """Send a completion and say what came: text, time of the first event, how it ended."""
    came: dict[str, Any] = {"text": "", "first": None, "finish": None, "error": None}
    lines = []
    async with http.stream("POST", "/v1/completions", json={**request, "stream": True}) as answer:
        came["status"] = answer.status_code
        async for line in answer.aiter_lines():
            lines.append(line)
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                came["error"] = event.get("error", came["error"])
                for choice in event.get("choices", []):
                    came["first"] = came["first"] or time.monotonic()
                    came["text"] += choice["text"]
                    came["finish"] = choice["finish_reason"] or came["finish"]
    came["done"] = [line for line in lines if line][-1:] == ["data: [DONE]"]
    return came


def connect(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits)


# ---- what the SDK sees ----------------------------------------------------------------


def test_chat_and_completions_streamed_and_whole(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
    assert whole.choices[0].message.content is not None
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0

    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=FRANCE, temperature=0, stream=True, stream_options=options
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    counted = chunks[-1].usage
    assert counted is not None
    assert counted.prompt_tokens == whole.usage.prompt_tokens
    assert counted.completion_tokens == whole.usage.completion_tokens

    plain = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=6, seed=3)
    pieces = client.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=6, seed=3, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in pieces) == plain.choices[0].text
    assert plain.choices[0].finish_reason == "length"


def test_a_prompt_that_comes_again_is_found_and_answered_the_same(
    client: OpenAI, server: Server
) -> None:
    """Fault: nothing is found through HTTP, or the answer is another one."""
    story: list[Any] = [{"role": "user", "content": "Tell me of the tide, " * 9}]
    # There are two replicas, so one of the later ones comes where an earlier one was.
    answers = [
        client.chat.completions.create(
            model=MODEL, messages=story, temperature=0, max_tokens=5, n=number
        )
        for number in (1, 1, 2)
    ]
    assert len({choice.message.content for answer in answers for choice in answer.choices}) == 1
    found = [answer.usage and answer.usage.prompt_tokens_details for answer in answers]
    assert max(details.cached_tokens or 0 for details in found if details) >= 32
    page = httpx.get(f"{server.url}/metrics").text
    hits = [line.split()[-1] for line in page.splitlines() if "cache_hits_total{" in line]
    assert sum(map(float, hits)) >= 32


def test_same_text_alone_and_among_sixteen_others(client: OpenAI) -> None:
    def ask(number: int) -> str | None:
        if number >= 0:
            client.completions.create(
                model=MODEL, prompt=f"Tell me {number} things", max_tokens=20, seed=number
            )
            return None
        answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
        return answer.choices[0].message.content

    alone = ask(-1)
    with concurrent.futures.ThreadPoolExecutor(17) as pool:
        others = [pool.submit(ask, number) for number in range(16)]
        among = pool.submit(ask, -1).result()
        for other in others:
            other.result()
    assert alone is not None
    assert "Paris" in alone
    assert among == alone


def test_several_prompts_in_one_request(client: OpenAI) -> None:
    both = client.completions.create(
        model=MODEL, prompt=["One, two,", "The sky is"], max_tokens=5, temperature=0
    )
    single = client.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=5, temperature=0
    )
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[1].text == single.choices[0].text


# ---- urgency, spread, memory ----------------------------------------------------------


async def test_an_urgent_request_starts_before_those_that_still_wait(server: Server) -> None:
    # 500 of a pool's 768 tokens: one runs on each replica, the others wait. Each runs for much
    # longer than an urgent one takes to the router.
    long = "word " * 500
    async with connect(server) as http:
        low = [asyncio.create_task(streamed(http, body(long, 60))) for _ in range(16)]
        await asyncio.to_thread(
            eventually, lambda: server.metrics()['num_requests_waiting{replica="router"}'] > 4
        )
        submitted = time.monotonic()
        high = await streamed(http, body(long, 8, priority=10))
        rest = await asyncio.gather(*low)
    later = [one for one in rest if one["first"] > submitted]
    before = [one for one in later if one["first"] < high["first"]]
    # On each replica the one that is being computed, and the two that were handed to it
    # ahead of time; of those that waited in the router, none.
    assert len(before) <= 6
    assert len(later) - len(before) >= 4
    assert all(one["done"] for one in [*rest, high])


async def test_forty_at_once_are_spread_evenly(server: Server) -> None:
    def placed() -> dict[str, float]:
        samples = server.metrics().items()
        return {k: v for k, v in samples if k.startswith("requests_placed_total")}

    before = placed()
    async with connect(server) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=body("Hi", 6)) for _ in range(40))
        )
    assert Counter(answer.status_code for answer in answers) == {200: 40}
    after = placed()
    each = [after[replica] - before.get(replica, 0) for replica in after]
    assert sum(each) == 40
    assert max(each) <= 22


async def test_64_streams_that_preempt_each_other_give_the_text_of_each_alone(
    server: Server,
) -> None:
    requests = [
        body(f"Number {i}:", 20 + 8 * (i % 3), priority=i % 3, seed=i, temperature=0.8)
        for i in range(64)
    ]
    preempted = server.total("num_preemptions_total")
    async with connect(server) as http:
        together = await asyncio.gather(*(streamed(http, request) for request in requests))
        eventually(server.idle)
        assert server.total("num_preemptions_total") > preempted
        assert all(one["done"] and one["finish"] == "length" for one in together)
        preempted = server.total("num_preemptions_total")
        # One on each replica at a time is as good as alone. A quarter of them goes like that,
        # the others eight at a time, for which there is room: nothing is preempted.
        first = 0
        while first < 64:
            some = slice(first, first + (2 if first < 16 else 8))
            calm = await asyncio.gather(*(streamed(http, request) for request in requests[some]))
            assert [one["text"] for one in calm] == [one["text"] for one in together[some]]
            first = some.stop
        assert server.total("num_preemptions_total") == preempted


# ---- clients that leave, processes that die -------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("split", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: Server, stream: bool, split: bool) -> None:
    """production-stack#634; with the body in a packet of its own HAProxy used to miss it."""
    content = json.dumps(body("A story", 700, stream=stream)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    aborted = server.metrics().get('request_success_total{finished_reason="abort"}', 0)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode())
        if split:
            time.sleep(0.05)
        client.sendall(content)
        eventually(lambda: server.total("num_requests_running") == 1)
    eventually(server.idle, 2.0)
    assert server.metrics()['request_success_total{finished_reason="abort"}'] == aborted + 1


async def test_vllm_31503_five_aborts_are_counted_and_nothing_runs(server: Server) -> None:
    name = 'request_success_total{finished_reason="abort"}'
    before = server.metrics().get(name, 0)
    async with connect(server) as http:
        tasks = [
            asyncio.create_task(http.post("/v1/completions", json=body("A story", 600)))
            for _ in range(5)
        ]
        await asyncio.to_thread(eventually, lambda: server.total("num_requests_running") == 5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await asyncio.to_thread(eventually, server.idle)
    assert server.metrics()[name] == before + 5


async def test_forty_cancels_at_different_moments_leave_nothing(server: Server) -> None:
    async def leave(http: httpx.AsyncClient, number: int) -> None:
        request = body("A story", 600, stream=number % 2 == 0, priority=number % 3)
        task = asyncio.create_task(http.post("/v1/completions", json=request))
        await asyncio.sleep(number * 0.03)
        task.cancel()
        await asyncio.wait([task])

    async with connect(server) as http:
        await asyncio.gather(*(leave(http, number) for number in range(40)))
        await asyncio.to_thread(eventually, server.idle, 5.0)
        # No grant is left either: all of a pool can be had.
        answer = await http.post("/v1/completions", json=body("word " * 600, 1))
        assert answer.status_code == 200


async def test_streams_go_on_when_their_replica_is_killed(server: Server) -> None:
    requests = [body(f"Tale {i}", 80, seed=i, temperature=0.9) for i in range(8)]
    async with connect(server) as http:
        calm = await asyncio.gather(*(streamed(http, request) for request in requests))
        resumed = server.total("request_resumed_total")
        tasks = [asyncio.create_task(streamed(http, request)) for request in requests]
        await asyncio.to_thread(eventually, lambda: server.total("num_requests_running") == 8)
        os.kill(server.processes("Replica")[0].pid, signal.SIGKILL)
        rough = await asyncio.gather(*tasks)
    assert [one["text"] for one in rough] == [one["text"] for one in calm]
    assert all(one["done"] for one in rough)
    assert server.total("request_resumed_total") > resumed


async def test_a_killed_gateway_leaves_nothing_running(server: Server) -> None:
    async with connect(server) as http:
        tasks = [asyncio.create_task(streamed(http, body("A story", 700))) for _ in range(3)]
        await asyncio.to_thread(eventually, lambda: server.total("num_requests_running") == 3)
        os.kill(server.processes("Gateway")[0].pid, signal.SIGKILL)
        await asyncio.gather(*tasks, return_exceptions=True)
    eventually(server.idle, 30)
    assert httpx.post(f"{server.url}/v1/completions", json=body("Hi", 2)).status_code == 200


# ---- the small endpoints --------------------------------------------------------------


def test_listens_where_it_was_told_only(server: Server) -> None:
    listening = set()
    for process in server.processes():
        # Workers that nobody needs end at any time.
        with suppress(psutil.NoSuchProcess):
            listening |= {
                connection.laddr.ip
                for connection in process.net_connections("tcp")
                if connection.status == "LISTEN" and connection.laddr.port == server.port
            }
    assert listening == {"127.0.0.1"}


def test_health_models_metrics(server: Server) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert (card["id"], card["object"], card["owned_by"]) == (MODEL, "model", "tidegate")
    # The pool is smaller than the model's context.
    assert card["max_model_len"] == 48 * 16
    assert httpx.head(f"{server.url}/metrics").status_code == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/nothing"])
def test_unknown_paths_wear_the_envelope(server: Server, path: str) -> None:
    answer = httpx.post(f"{server.url}{path}", json={})
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_request_ids_are_echoed_or_made(server: Server) -> None:
    answer = httpx.get(f"{server.url}/health", headers={"x-request-id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert httpx.get(f"{server.url}/health").headers["x-request-id"]


@pytest.mark.parametrize(
    "request_body",
    [{"prompt": ""}, {"prompt": []}, {"prompt": [""]}, {"prompt": "Hi", "max_tokens": 5000}],
)
def test_bad_requests_are_refused_and_the_next_works(
    server: Server, request_body: dict[str, Any]
) -> None:
    """vllm#7746: an empty prompt took the engine down."""
    refused = httpx.post(f"{server.url}/v1/completions", json={**request_body, "stream": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert httpx.post(f"{server.url}/v1/completions", json=body("Hi", 1)).status_code == 200


# ---- after all of this ----------------------------------------------------------------


def test_a_replica_that_was_killed_is_there_again(server: Server) -> None:
    """Serve brings it back, and the router hears of it; the last test, so that nobody waits."""
    key = "replica_report_age_seconds"
    eventually(lambda: sum(k.startswith(key) for k in server.metrics()) == 2, 60)

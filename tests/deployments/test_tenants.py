"""Tenants, groups and time limits on a running server."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deployments.conftest import Server, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(200)]

KEYS = """
tenants:
  heavy: {}
  light: {}
  one: {max_in_flight: 1, max_priority: 5}
  few: {tokens_per_minute: 60}
keys: {sk-heavy: heavy, sk-light: light, sk-one: one, sk-few: few}
"""
SHORT = {"prompt": "One, two,", "max_tokens": 8, "ignore_eos": True}
LONG = SHORT | {"max_tokens": 900}


@pytest.fixture(scope="module")
def shared(demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two replicas with two seats each, twelve places in the queue, four tenants."""
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(KEYS)
    server = Server(
        *("--threads", "1"),
        *("--max-num-seqs", "2", "--max-queued", "12", "--lookahead", "0"),
        *("--num-blocks", "128", "--key-file", str(path)),
    )
    yield server
    server.stop()


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{tenant}"}


def post(server: Server, tenant: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    url = f"{server.url}/v1/completions"
    return httpx.post(url, json=body, headers=bearer(tenant) | headers, timeout=60)


def running(server: Server, tenant: str) -> int:
    """Requests under way of the tenant, which sees no other."""
    shown = httpx.get(f"{server.url}/load", headers=bearer(tenant), timeout=30).json()
    (own,) = shown["tenants"]
    assert own["tenant"] == tenant
    return int(own["in_flight"])


def test_only_those_with_a_key_and_within_their_range(shared: Server) -> None:
    assert post(shared, "nobody", {"prompt": "x", "max_tokens": 1}).status_code == 401
    assert post(shared, "one", {"prompt": "x", "max_tokens": 1, "priority": 5}).status_code == 200
    refused = post(shared, "one", {"prompt": "x", "max_tokens": 1, "priority": 6})
    assert refused.status_code == 400
    assert "from -1000 to 5, not 6" in refused.json()["error"]["message"]


def test_choices_that_do_not_all_find_a_place_are_refused_together(shared: Server) -> None:
    """vllm PR#53936."""
    many = {**SHORT, "n": 16}  # four seats and twelve places
    body = {**LONG, "stream": True}
    url = f"{shared.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=bearer("heavy"), timeout=60) as stream:
        lines = stream.iter_lines()  # to be kept, or it closes the stream
        next(lines)
        refused = post(shared, "heavy", many)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    eventually(shared.idle)
    assert len(post(shared, "heavy", many).json()["choices"]) == 16
    never = post(shared, "heavy", {**SHORT, "n": 17})
    assert (never.status_code, never.json()["error"]["code"]) == (400, "request_too_large")
    eventually(shared.idle)


async def test_one_more_than_a_tenant_may_have_waits_for_the_end_of_one(shared: Server) -> None:
    short = {"prompt": "x", "max_tokens": 1}
    url = f"{shared.url}/v1/completions"
    async with httpx.AsyncClient(headers=bearer("one"), timeout=60) as http:
        body = {**LONG, "stream": True}
        async with http.stream("POST", url, json=body) as stream:
            await anext(stream.aiter_lines())
            refused = await http.post(url, json=short)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "tenant_requests_exceeded"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await http.post(url, json=short, headers=bearer("light"))).status_code == 200
        # The client has left.
        await asyncio.to_thread(eventually, lambda: running(shared, "one") == 0)
        assert (await http.post(url, json=short)).status_code == 200


def test_a_minutes_tokens_and_when_there_are_more(shared: Server) -> None:
    body = {"prompt": [[40] * 50], "max_tokens": 1}
    assert post(shared, "few", body).status_code == 200
    refused = post(shared, "few", body)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "tenant_tokens_exceeded"
    # About one comes back in a second.
    assert 20 <= int(refused.headers["retry-after"]) <= 1.5 * 60 + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_that_passes_ends_the_request_and_leaves_nothing(
    shared: Server, stream: bool
) -> None:
    body = {**LONG, "stream": stream}
    answer = post(shared, "heavy", body, **{"X-Request-Timeout-Ms": "1500"})
    if answer.status_code == 200:  # it had begun
        assert stream
        events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        error = json.loads(events[-2].removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 504
        assert answer.headers["x-should-retry"] == "false"
        error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
    eventually(shared.idle)
    assert shared.metrics()['request_expired_total{limit="end"}'] >= 1


async def test_a_heavy_tenant_holds_up_a_light_one_no_more_than_its_share(shared: Server) -> None:
    url = f"{shared.url}/v1/completions"
    done: Counter[str] = Counter()

    async def ask(http: httpx.AsyncClient, tenant: str) -> int:
        answer = await http.post(url, json=SHORT, headers=bearer(tenant))
        done[tenant] += answer.status_code == 200
        return answer.status_code

    async with httpx.AsyncClient(timeout=60) as http:
        tasks = [asyncio.create_task(ask(http, "heavy")) for _ in range(15)]
        waits = "num_requests_waiting"
        await asyncio.to_thread(eventually, lambda: shared.total(waits) >= 10)
        before = done["heavy"]
        assert await ask(http, "light") == 200
        # Those that ran when it came, and perhaps as many again while it ran; not the backlog.
        assert done["heavy"] - before <= 9
        assert set(await asyncio.gather(*tasks)) == {200}
    eventually(shared.idle)


async def test_a_new_router_knows_what_runs(shared: Server) -> None:
    """It heard of requests from replicas by name alone, and let in one too many."""
    url = f"{shared.url}/v1/completions"
    async with httpx.AsyncClient(headers=bearer("one"), timeout=60) as http:
        body = {**LONG, "stream": True}
        async with http.stream("POST", url, json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            (router,) = shared.processes("Router")
            router.kill()
            await asyncio.to_thread(eventually, lambda: running(shared, "one") == 1, 60.0)
        await asyncio.to_thread(eventually, lambda: running(shared, "one") == 0)

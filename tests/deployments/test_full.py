"""A system with hardly any room: what is full says so at once, and keeps what it took."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deployments.conftest import API_KEY, Server, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(200)]

KEY = {"Authorization": f"Bearer {API_KEY}"}


def post(server: Server, body: dict[str, Any], **more: Any) -> httpx.Response:
    more.setdefault("headers", KEY)
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, **more)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_burst_gets_answers_and_429s_and_nothing_else(
    short_queues: Server, stream: bool
) -> None:
    """ray#51145: a full queue answered 500, or a stream that just ended."""
    body = {"prompt": "abc", "max_tokens": 100, "ignore_eos": True, "stream": stream}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(
        base_url=short_queues.url, headers=KEY, timeout=60, limits=limits
    ) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=body) for _ in range(60))
        )
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    # One place to wait on each replica, until a step takes from it, and two in the router.
    assert statuses[200] >= 4
    refused = [answer for answer in answers if answer.status_code == 429]
    for answer in refused:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["error"]["type"] == "rate_limit_error"
    # Spread, so that those who obey do not come back all at once.
    assert len({answer.headers["retry-after-ms"] for answer in refused}) > 1
    for answer in answers:
        if answer.status_code == 200 and stream:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert "error" not in answer.text
    eventually(short_queues.idle)
    rejected = short_queues.metrics()['admission_rejections_total{reason="busy"}']
    assert rejected >= len(refused)
    # And everything can be had again.
    assert post(short_queues, {"prompt": "x" * 100, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/chat/completions"])
def test_without_the_key_nothing_is_told(
    short_queues: Server, headers: dict[str, str], path: str
) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    answer = httpx.request(method, f"{short_queues.url}{path}", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_probes_need_no_key(short_queues: Server) -> None:
    assert httpx.get(f"{short_queues.url}/health").status_code == 200
    assert httpx.get(f"{short_queues.url}/metrics").status_code == 200


def test_a_large_body_is_refused(short_queues: Server) -> None:
    answer = post(short_queues, {"prompt": "x" * 5000})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_another_model_is_not_found(short_queues: Server) -> None:
    answer = post(short_queues, {"prompt": "x", "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "model"


def test_the_key_is_not_in_any_log(short_queues: Server) -> None:
    assert API_KEY not in short_queues.output
    folder = short_queues.output.split("(logs: ")[1].split(";")[0]
    logs = list(Path(folder).resolve().rglob("*.log"))
    assert logs
    assert not [log for log in logs if API_KEY in log.read_text(errors="replace")]

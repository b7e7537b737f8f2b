"""The HTTP application around a router that says whatever a test wants, without a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from deployments.gateway import KEEP_ALIVE_S
from deployments.messages import Refusal, RefusalKind, ReplicaInfo
from engine.submission import Submission
from tests.deployments.house import INFO, House, error, open_house
from tests.deployments.sequences import settle

BODY = {"prompt": "abc", "max_tokens": 3, "ignore_eos": True}


@pytest.fixture
async def house(tiny_model_dir: Path) -> AsyncIterator[House]:
    async with open_house(tiny_model_dir) as house:
        yield house


async def test_ill_health_wears_the_envelope_and_says_when_to_come_back(house: House) -> None:
    assert (await house.http.get("/health")).status_code == 200
    house.router.well = False
    answer = await house.http.get("/health")
    assert (answer.status_code, error(answer)["code"]) == (503, "no_replica")
    assert int(answer.headers["retry-after"]) >= 1


async def test_metrics_without_a_router_wear_it_too_and_lose_nothing(house: House) -> None:
    house.gateway._counts.add("prompt_tokens_total", 5)
    house.router.gone = True
    answer = await house.http.get("/metrics")
    assert (answer.status_code, error(answer)["code"]) == (503, "no_replica")
    house.router.gone = False
    assert (await house.http.get("/metrics")).text == "5\n"
    assert (await house.http.head("/metrics")).status_code == 200


async def test_a_scraper_that_leaves_takes_no_counts_along(house: House) -> None:
    house.gateway._counts.add("prompt_tokens_total", 5)
    scrape = asyncio.create_task(house.gateway.metrics())
    await asyncio.sleep(0)
    scrape.cancel()
    await asyncio.wait([scrape])
    assert (await house.http.get("/metrics")).text == "5\n"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
    ],
)
async def test_wrong_paths_and_methods_wear_the_envelope(
    house: House, method: str, path: str, status: int, code: str
) -> None:
    answer = await house.http.request(method, path)
    assert (answer.status_code, error(answer)["code"]) == (status, code)


ASKS = {"Access-Control-Request-Method": "POST"}


@pytest.mark.parametrize("origins", [["*"], ["http://a", "https://b:1"]])
async def test_pages_of_the_origins_that_are_named_may_call(
    tiny_model_dir: Path, origins: list[str]
) -> None:
    async with open_house(tiny_model_dir, cors_origins=origins, api_key="k") as house:
        page = {"Origin": "https://b:1"}
        asked = {**page, **ASKS, "Access-Control-Request-Headers": "authorization, x-tl-priority"}
        before = await house.http.options("/v1/completions", headers=asked)
        assert before.status_code == 200
        assert "POST" in before.headers["access-control-allow-methods"]
        assert "x-tl-priority" in before.headers["access-control-allow-headers"]
        for key in ("k", "wrong"):
            sent = {**page, "Authorization": f"Bearer {key}"}
            answer = await house.http.post("/v1/completions", json=BODY, headers=sent)
            assert answer.headers["access-control-allow-origin"] in ("*", "https://b:1")
            assert "retry-after" in answer.headers["access-control-expose-headers"]
        stranger = {"Origin": "http://c", **ASKS}
        refused = await house.http.options("/v1/completions", headers=stranger)
        assert (refused.status_code == 200) == (origins == ["*"])


async def test_no_page_elsewhere_may_call_unless_it_is_named(house: House) -> None:
    asked = {"Origin": "http://a", **ASKS}
    assert (await house.http.options("/v1/completions", headers=asked)).status_code == 405
    answer = await house.http.get("/v1/models", headers={"Origin": "http://a"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize"])
async def test_the_length_that_replicas_hold_is_told_before_anybody_asked_for_an_answer(
    house: House, path: str
) -> None:
    """Clients read the limit first, and would send what no pool holds."""

    async def told() -> int:
        if path == "/tokenize":
            answer = await house.http.post(path, json={"prompt": "a"})
        else:
            answer = await house.http.get(path)
        told = answer.json()
        return int(told.get("data", [told])[0]["max_model_len"])

    house.router.well = False
    of_the_model = await told()
    house.router.well = True
    assert await told() == 80 < of_the_model


@pytest.mark.parametrize("name", ["m", "Qwen/Qwen3-0.6B", "/models/mine/", "a b?é"])
async def test_the_model_is_found_by_its_name_and_no_other_is(
    tiny_model_dir: Path, name: str
) -> None:
    async with open_house(tiny_model_dir, served_model_name=name) as house:
        (card,) = (await house.http.get("/v1/models")).json()["data"]
        assert card["id"] == name
        for path in (quote(name), quote(name, safe="")):
            found = await house.http.get(f"/v1/models/{path}")
            assert (found.status_code, found.json()) == (200, card)
        for other in (f"{name}x", "%2F", ""):
            missing = await house.http.get(f"/v1/models/{other}")
            assert (missing.status_code, error(missing)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "status"), [(RefusalKind.BUSY, 429), (RefusalKind.NO_REPLICA, 503)]
)
async def test_a_refusal_comes_before_any_byte(
    house: House, stream: bool, kind: RefusalKind, status: int
) -> None:
    house.router.answer = Refusal(kind, retry_after=2.5)
    answer = await house.http.post("/v1/completions", json={**BODY, "stream": stream})
    assert answer.status_code == status
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2500")
    assert error(answer)["message"]
    assert len(house.router.released) == 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_choices_are_let_in_together_or_not_at_all(house: House, streamed: bool) -> None:
    body = {**BODY, "prompt": ["abc"] * 2, "n": 3, "stream": streamed}
    answer = await house.http.post("/v1/completions", json=body)
    assert (answer.status_code, error(answer)["code"]) == (429, "queue_full")
    assert house.router.admitted == [6]
    assert house.link.submissions == []
    async with asyncio.timeout(5):
        while len(house.router.released) < 6:
            await asyncio.sleep(0)
    assert len(set(house.router.released)) == 6
    house.router.answer = "r"
    answer = await house.http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert len(house.link.submissions) == 6


async def test_a_client_that_leaves_while_its_choices_are_let_in_leaves_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def admit(tickets: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(house.router, "admit", admit)
    request = asyncio.create_task(house.http.post("/v1/completions", json={**BODY, "n": 3}))
    await asked.wait()
    request.cancel()
    await asyncio.wait([request])
    async with asyncio.timeout(5):
        while len(house.router.released) < 3:
            await asyncio.sleep(0)
    assert house.link.submissions == []


async def test_a_bug_while_choices_are_let_in_ends_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(tickets: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(house.router, "admit", admit)
    answer = await house.http.post("/v1/completions", json={**BODY, "n": 2})
    assert (answer.status_code, error(answer)["code"]) == (500, "internal_error")


KEYS = """
tenants: {search: {min_priority: -10, max_priority: 3}, batch: {max_priority: -5}}
keys: {sk-search: search, sk-batch: batch}
"""


async def test_a_key_is_a_tenant_with_priorities_of_its_own(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys.yaml").write_text(KEYS)
    async with open_house(tiny_model_dir, key_file=str(tmp_path / "keys.yaml")) as house:
        house.router.answer = "r"

        async def ask(key: str, **fields: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return await house.http.post(
                "/v1/completions", json={**BODY, **fields}, headers=headers
            )

        assert (await ask("sk-other")).status_code == 401
        refused = await ask("sk-search", priority=4)
        assert (refused.status_code, error(refused)["param"]) == (400, "priority")
        assert "from -10 to 3, not 4" in error(refused)["message"]
        assert (await ask("sk-search", priority=3)).status_code == 200
        assert (await ask("sk-batch")).status_code == 200
        assert [s.priority for s in house.link.submissions] == [3, -5]
        assert [ticket.tenant for ticket in house.router.placed] == ["search", "batch"]


async def test_who_sees_which_tenants(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(KEYS)
    keys = {"key_file": str(tmp_path / "keys.yaml"), "api_key": "sk-operator"}
    async with open_house(tiny_model_dir, **keys) as house:
        for key, seen in (
            ("sk-batch", ["batch"]),
            ("sk-search", ["search"]),
            ("sk-operator", ["search", "batch"]),
        ):
            answer = await house.http.get("/load", headers={"authorization": f"Bearer {key}"})
            assert [one["tenant"] for one in answer.json()["tenants"]] == seen
    async with open_house(tiny_model_dir) as house:
        assert len((await house.http.get("/load")).json()["tenants"]) == 2


@pytest.mark.parametrize(
    ("headers", "body", "what"),
    [
        ({"X-Request-Timeout-Ms": "20"}, {}, "end"),
        ({}, {"timeout_ms": 20}, "end"),
        ({"X-First-Token-Timeout-Ms": "20"}, {}, "first token"),
        ({}, {"first_token_timeout_ms": 20}, "first token"),
    ],
)
@pytest.mark.parametrize("question", ["describe", "place"])
async def test_a_time_limit_ends_the_wait_for_any_replica_or_for_a_place(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    headers: dict[str, str],
    body: dict[str, int],
    what: str,
    question: str,
) -> None:
    """Requests are held for a minute while no replica is there; this client has less time."""

    async def unanswered(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(house.router, question, unanswered)
    answer = await house.http.post("/v1/completions", json={**BODY, **body}, headers=headers)
    assert (answer.status_code, error(answer)["code"]) == (504, "deadline_exceeded")
    assert what in error(answer)["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_stream_that_a_bug_ends_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that just ends is read as a success."""
    house.router.answer = "r"
    pushes = iter([b"data: {}\n\n"])
    monkeypatch.setattr("deployments.answer.EventStream.push", lambda *_: next(pushes))
    body = {**BODY, "stream": True}
    answer = await house.http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    events = answer.text.split("\n\n")
    assert events[0] == "data: {}"
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "internal_error"
    assert events[2:] == ["data: [DONE]", ""]
    assert "mine" in {record.__dict__.get("request_id") for record in caplog.records}


async def test_a_first_request_is_held_to_what_a_replica_holds(house: House) -> None:
    """Before the first answer only the model's context is known; a pool may be smaller."""
    pool = INFO.total_blocks * INFO.block_tokens
    for _ in range(2):
        answer = await house.http.post("/v1/completions", json={**BODY, "max_tokens": pool + 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
        assert str(pool) in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["X-Request-Timeout-Ms", "X-First-Token-Timeout-Ms"])
async def test_a_time_limit_ends_a_stream_that_stalls_but_for_that_of_the_first_token(
    house: House, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    house.router.answer = "r"
    hour_ms, loop = 3_600_000, asyncio.get_running_loop()
    clock = loop.time

    async def submit(
        submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> None:
        listener, key = house.link.listeners[submission.key], submission.key
        listener((key, (65,), "a", None, None, None))
        # What is told in time is told: the rest comes after the limit.
        monkeypatch.setattr(loop, "time", lambda: clock() + 2 * hour_ms / 1000)
        await settle()
        listener((key, (66,), "b", "stop", None, None))

    monkeypatch.setattr(house.link, "submit", submit)
    answer = await house.http.post(
        "/v1/completions", json={**BODY, "stream": True}, headers={name: str(hour_ms)}
    )
    monkeypatch.setattr(loop, "time", clock)
    *events, done, nothing = answer.text.split("\n\n")
    assert (answer.status_code, done, nothing) == (200, "data: [DONE]", "")
    last = json.loads(events[-1].removeprefix("data: "))
    if name == "X-Request-Timeout-Ms":
        assert last["error"]["code"] == "deadline_exceeded"
        assert "end" in last["error"]["message"]
    else:
        assert last["choices"][0]["finish_reason"] == "stop"


async def test_a_stream_that_waits_says_so_before_its_first_token_and_after(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.router.answer = "r"
    loop = asyncio.get_running_loop()
    clock, ahead = loop.time, 0.0

    async def silence() -> None:
        nonlocal ahead
        ahead += KEEP_ALIVE_S
        await settle()

    async def submit(
        submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> None:
        listener, key = house.link.listeners[submission.key], submission.key
        await silence()
        listener((key, (65,), "a", None, None, None))
        await settle()
        await silence()
        listener((key, (66,), "b", "stop", None, None))

    monkeypatch.setattr(house.link, "submit", submit)
    monkeypatch.setattr(loop, "time", lambda: clock() + ahead)
    answer = await house.http.post("/v1/completions", json={**BODY, "stream": True})
    monkeypatch.setattr(loop, "time", clock)
    first, a, second, *rest = answer.text.split("\n\n")
    assert first == second == ": keep-alive"
    assert json.loads(a.removeprefix("data: "))["choices"][0]["text"] == "a"
    assert ": keep-alive" not in rest
    assert rest[-2:] == ["data: [DONE]", ""]


async def test_what_is_wrong_with_a_request_is_said_while_no_replica_is_there(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe() -> ReplicaInfo:
        raise AssertionError("nobody is there to ask")

    monkeypatch.setattr(house.router, "describe", describe)
    answer = await house.http.post("/v1/completions", json={**BODY, "temperature": 9})
    assert answer.status_code == 400


async def test_answers_streamed_and_whole_are_the_same(house: House) -> None:
    house.router.answer = "r"
    whole = (await house.http.post("/v1/completions", json=BODY)).json()
    assert (whole["choices"][0]["text"], whole["usage"]["completion_tokens"]) == ("ab", 2)
    stream = (await house.http.post("/v1/completions", json={**BODY, "stream": True})).text
    assert stream.endswith("data: [DONE]\n\n")
    assert "\r" not in stream
    chunks = [json.loads(one[6:]) for one in stream.split("\n\n") if one.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"


@pytest.mark.parametrize(("source", "temperature"), [("api", 1.0), ("model", 0.25)])
async def test_sampling_defaults_come_from_where_the_setting_says(
    tiny_copy: Path, source: str, temperature: float
) -> None:
    config = tiny_copy / "generation_config.json"
    told = {**json.loads(config.read_text()), "temperature": 0.25}
    config.write_text(json.dumps(told))
    async with open_house(tiny_copy, generation_config=source) as house:
        house.router.answer = "r"
        assert (await house.http.post("/v1/completions", json=BODY)).status_code == 200
        assert house.link.submissions[0].params.temperature == temperature

"""Whole and streamed answers of the gateway: choices, log-probabilities, echoes, tiers, limits."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from deployments.messages import Refusal, RefusalKind, refuse
from deployments.openai.logprobs import CompletionLedger
from engine.guidance import GuidanceError
from engine.request import InvalidParam
from engine.step import reason_of
from engine.submission import Submission
from engine.text import Detokenizer, TokenBytes
from tests.deployments.house import House, error, open_house

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
    "/v1/completions": {"prompt": "abc"},
}
BOTH = pytest.mark.parametrize("path", list(PROMPTS))


@pytest.fixture
async def house(tiny_model_dir: Path) -> AsyncIterator[House]:
    async with open_house(tiny_model_dir, service_tiers={"flex": -5}) as house:
        house.gateway._intake._tokenizer.chat_template = TEMPLATE
        house.router.answer = "r"
        yield house


async def ask(house: House, path: str, **fields: Any) -> dict[str, Any]:
    body = {**PROMPTS[path], "max_tokens": 3, **fields}
    answer = await house.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = json.loads(answer.text, parse_constant=pytest.fail)
    return found


async def stream(house: House, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = {**PROMPTS[path], "max_tokens": 3, "stream": True, **fields}
    answer = await house.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    *events, done, nothing = answer.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(choice: dict[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("content") or part.get("text") or ""


def merged(chunks: list[dict[str, Any]], index: int) -> tuple[str, list[Any], list[str]]:
    """A choice's text, its log-probabilities and its finish reasons, from a stream."""
    own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    text = "".join(text_of(choice) for choice in own)
    told = [choice["logprobs"] for choice in own if choice["logprobs"] is not None]
    return text, told, [c["finish_reason"] for c in own if c["finish_reason"] is not None]


@BOTH
async def test_n_choices_count_their_prompt_once(house: House, path: str) -> None:
    whole = await ask(house, path, n=3)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [text_of(choice) for choice in whole["choices"]] == ["ab"] * 3
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 6
    (ChatCompletion if "chat" in path else Completion).model_validate(whole)  # type: ignore[attr-defined]
    assert len({s.params.seed for s in house.link.submissions}) == 3


@BOTH
async def test_n_choices_have_one_role_and_one_end_each(house: House, path: str) -> None:
    chunks = await stream(house, path, n=3, stream_options={"include_usage": True})
    for index in range(3):
        assert merged(chunks, index) == ("ab", [], ["length"])
    roles = [c.get("delta", {}).get("role") for chunk in chunks for c in chunk["choices"]]
    assert roles.count("assistant") == (3 if "chat" in path else 0)
    assert chunks[-1]["usage"]["prompt_tokens"] == 3
    assert chunks[-1]["usage"]["completion_tokens"] == 6


async def test_choices_of_several_prompts_are_numbered_through(house: House) -> None:
    whole = await ask(house, "/v1/completions", prompt=["x", "yz"], n=2, echo=True)
    found = [(choice["index"], choice["text"]) for choice in whole["choices"]]
    assert found == [(0, "xab"), (1, "xab"), (2, "yzab"), (3, "yzab")]
    assert whole["usage"]["prompt_tokens"] == 3


async def test_log_probabilities_of_chat(house: House) -> None:
    path = "/v1/chat/completions"
    whole = await ask(house, path, logprobs=True, top_logprobs=1)
    answer = ChatCompletion.model_validate(whole)
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert answer.usage is not None
    assert len(told.content) == answer.usage.completion_tokens == 2
    assert [(t.logprob, len(t.top_logprobs)) for t in told.content] == [(-0.5, 1)] * 2
    chunks = await stream(house, path, logprobs=True, top_logprobs=1)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    _, pieces, _ = merged(chunks, 0)
    joined = [entry for piece in pieces for entry in piece["content"]]
    assert joined == whole["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("echo", [True, False])
async def test_log_probabilities_of_completions(house: House, echo: bool) -> None:
    path = "/v1/completions"
    whole = await ask(house, path, logprobs=1, echo=echo)
    # Not validated: for the SDK's types a prompt's first token would have a probability.
    choice = Completion.construct(**whole).choices[0]
    assert choice.text == ("abcab" if echo else "ab")
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset == ([0, 1, 2, 3, 4] if echo else [0, 1])
    prompt = [None, -1.5, -1.5] if echo else []
    assert choice.logprobs.token_logprobs == [*prompt, -0.5, -0.5]
    text, pieces, _ = merged(await stream(house, path, logprobs=1, echo=echo), 0)
    assert text == choice.text
    joined = {name: [x for piece in pieces for x in piece[name]] for name in pieces[0]}
    assert joined == whole["choices"][0]["logprobs"]
    assert whole["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("late", [True, False])
async def test_a_prompt_is_scored_once_and_told_by_all_its_choices(
    house: House, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Scored for each of them, one request kept a gateway from all others for seconds."""
    submit, others = house.link.submit, asyncio.Semaphore(0)

    async def in_turn(submission: Submission, *rest: Any) -> None:
        if submission.params.prompt_logprobs is None:
            await submit(submission, *rest)
            others.release()
            return
        if late:
            for _ in range(2):
                await others.acquire()
        await submit(submission, *rest)

    monkeypatch.setattr(house.link, "submit", in_turn)
    path, fields = "/v1/completions", {"prompt": ["abc", "de"], "echo": True, "logprobs": 1}
    whole = await ask(house, path, n=3, **fields)
    scored = [s.prompt for s in house.link.submissions if s.params.prompt_logprobs is not None]
    assert len(scored) == len(set(scored)) == len(whole["choices"]) / 3
    chunks = await stream(house, path, n=3, **fields)
    for choice in whole["choices"]:
        told = choice["logprobs"]["token_logprobs"]
        assert told == [None, *[-1.5] * (len(choice["text"]) - 3), -0.5, -0.5]
        text, pieces, _ = merged(chunks, choice["index"])
        assert text == choice["text"]
        joined = {name: [x for piece in pieces for x in piece[name]] for name in pieces[0]}
        assert joined == choice["logprobs"]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("size", [3, 70])
async def test_what_is_long_to_spell_holds_up_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch, streamed: bool, size: int
) -> None:
    spelt, threads = CompletionLedger._spelt, set()

    def spell(ledger: CompletionLedger, noted: Any) -> dict[str, Any]:
        threads.add(threading.current_thread() is threading.main_thread())
        return spelt(ledger, noted)

    monkeypatch.setattr(CompletionLedger, "_spelt", spell)
    fields = {"prompt": "x" * size, "echo": True, "logprobs": 1, "stream": streamed}
    answer = await house.http.post("/v1/completions", json={**fields, "max_tokens": 1})
    assert answer.status_code == 200
    assert threads == {size == 3}


@BOTH
async def test_without_asking_there_are_none(house: House, path: str) -> None:
    assert (await ask(house, path))["choices"][0]["logprobs"] is None
    assert merged(await stream(house, path), 0) == ("ab", [], ["length"])


@pytest.mark.parametrize("echo", [True, False])
async def test_nothing_generated_is_nothing_counted(house: House, echo: bool) -> None:
    path, fields = "/v1/completions", {"max_tokens": 0, "echo": echo, "logprobs": 0}
    whole = await ask(house, path, **fields)
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc" if echo else "", "length")
    assert whole["usage"]["completion_tokens"] == 0
    assert whole["usage"]["total_tokens"] == 3
    told = choice["logprobs"] and choice["logprobs"]["token_logprobs"]
    assert told == ([None, -1.5, -1.5] if echo else None)
    chunks = await stream(house, path, **fields)
    assert merged(chunks, 0)[0] == choice["text"]
    assert merged(chunks, 0)[2] == ["length"]


@BOTH
async def test_what_a_prefix_cache_held_of_a_prompt_counts_once(house: House, path: str) -> None:
    """Fault: it is counted for each choice, so that more was found than the prompt has."""
    house.link.cached = 2
    for fields in ({}, {"logprobs": True if "chat" in path else 0}):
        whole = await ask(house, path, n=3, **fields)
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    chunks = await stream(house, path, n=2, stream_options={"include_usage": True})
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@BOTH
async def test_a_cache_salt_reaches_the_replica(house: House, path: str) -> None:
    """Fault: who asks to share with nobody shares with all."""
    salts = []
    for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        await ask(house, path, **fields)
        salts.append(house.link.submissions[-1].salt)
    assert salts[0] == b""
    assert len(set(salts)) == 3


@BOTH
async def test_running_usage_is_on_every_chunk(house: House, path: str) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    chunks = await stream(house, path, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 2
    assert all(chunk["usage"]["prompt_tokens"] == 3 for chunk in chunks)


@BOTH
@pytest.mark.parametrize(("tier", "used"), [("auto", "default"), ("flex", "flex")])
async def test_the_tier_used_is_echoed(house: House, path: str, tier: str, used: str) -> None:
    assert (await ask(house, path, service_tier=tier))["service_tier"] == used
    chunks = await stream(house, path, service_tier=tier)
    assert {chunk.get("service_tier") for chunk in chunks} == {used}
    assert {s.priority for s in house.link.submissions} == {-5 if tier == "flex" else 0}
    answer = await house.http.post(path, json={**PROMPTS[path], "service_tier": "priority"})
    assert (answer.status_code, error(answer)["param"]) == (400, "service_tier")


@BOTH
async def test_what_a_client_asks_reaches_the_engine(house: House, path: str) -> None:
    fields = {"logit_bias": {"7": -3}, "min_tokens": 2, "stop_token_ids": [9]}
    await ask(house, path, **fields)
    (submission,) = house.link.submissions
    params = submission.params
    assert (params.logit_bias, params.min_tokens, params.stop_token_ids) == (
        ((7, -3.0),),
        2,
        (9,),
    )


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("refusal", "status", "kind", "code"),
    [
        (Refusal(RefusalKind.EXPIRED, message="end"), 504, "timeout_error", "deadline_exceeded"),
        (
            Refusal(RefusalKind.TOO_MANY, current=9, limit=8),
            400,
            "invalid_request_error",
            "request_too_large",
        ),
        (
            Refusal(RefusalKind.TENANT_BUSY, retry_after=2.5, limit=3),
            429,
            "rate_limit_error",
            "tenant_requests_exceeded",
        ),
        (
            Refusal(RefusalKind.TENANT_RATE, retry_after=2.5, limit=100),
            429,
            "rate_limit_error",
            "tenant_tokens_exceeded",
        ),
    ],
)
async def test_who_is_turned_away_hears_why_and_whether_to_try_again(
    house: House, streamed: bool, refusal: Refusal, status: int, kind: str, code: str
) -> None:
    house.router.answer = refusal
    answer = await house.http.post("/v1/completions", json={"prompt": "abc", "stream": streamed})
    found = error(answer)
    assert (answer.status_code, found["type"], found["code"]) == (status, kind, code)
    if status == 429:
        assert str(refusal.limit) in found["message"]
        assert answer.headers["retry-after-ms"] == "2500"
    elif status == 400:
        assert "9 choices, but the server has room for 8" in found["message"]
        assert "retry-after" not in answer.headers
    else:
        # The SDK would send it again by itself.
        assert answer.headers["x-should-retry"] == "false"


async def test_ray_53922_max_completion_tokens_is_exact(house: House) -> None:
    await ask(house, "/v1/chat/completions", max_completion_tokens=10)
    assert house.link.submissions[0].params.max_tokens == 10


@BOTH
@pytest.mark.parametrize("size", [1, 3])
async def test_vllm_3574_nothing_of_a_stop_string_is_sent(
    house: House, path: str, size: int
) -> None:
    """Its beginning was streamed before the rest of it had come."""
    names = house.gateway._intake.names
    ids = {bytes(names.of(id, False)[1]): id for id in range(256)}
    tokens = [ids[char.encode()] for char in "x ABC DEFGHIJ K"]
    detokenizer = Detokenizer(
        TokenBytes(house.gateway._intake._tokenizer), ("DEFGHIJ",), min_tokens=0
    )
    for at in range(0, len(tokens), size):
        texts = [detokenizer.push(token).text for token in tokens[at : at + size]]
        house.link.script.append((tuple(tokens[at : at + size]), "".join(texts)))
        if detokenizer.stopped:
            break
    asked = True if "chat" in path else 0
    fields = {"stop": "DEFGHIJ", "logprobs": asked, "max_tokens": 20}
    whole = await ask(house, path, **fields)
    chunks = await stream(house, path, **fields)
    text, told, ends = merged(chunks, 0)
    assert text == text_of(whole["choices"][0]) == "x ABC "
    assert ends == [whole["choices"][0]["finish_reason"]] == ["stop"]
    # Every token has its entry and its place, shown or not.
    count = whole["usage"]["completion_tokens"]
    if "chat" in path:
        assert sum(len(piece["content"]) for piece in told) == count
    else:
        offsets = [at for piece in told for at in piece["text_offset"]]
        assert offsets == list(range(count))
        assert whole["choices"][0]["logprobs"]["text_offset"] == offsets


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": ""}),
        ("/v1/completions", {"prompt": [""]}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": [[]]}),
        ("/v1/completions", {"prompt": ["a", ""]}),
        ("/v1/chat/completions", {"messages": []}),
    ],
)
async def test_vllm_7746_an_empty_prompt_harms_nobody(
    house: House, path: str, fields: dict[str, Any]
) -> None:
    """It took the engine down."""
    answer = await house.http.post(path, json=fields)
    assert (answer.status_code, error(answer)["param"]) == (400, next(iter(fields)))
    assert house.link.submissions == []
    assert text_of((await ask(house, path))["choices"][0]) == "ab"


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"999999": 5}},
        {"logit_bias": {"AI": 1}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nothing"}},
            }
        },
        {"guided_regex": "("},
    ],
    ids=str,
)
async def test_vllm_16529_a_wrong_request_harms_nobody(
    house: House, path: str, fields: dict[str, Any]
) -> None:
    """It took the engine down, and all other streams with it."""
    body = {**PROMPTS[path], "stream": True}
    async with house.http.stream("POST", path, json=body) as other:
        answer = await house.http.post(path, json={**PROMPTS[path], **fields})
        assert answer.status_code == 400
        assert error(answer)["param"].split(".")[0] == next(iter(fields))
        assert (await other.aread()).endswith(b"data: [DONE]\n\n")
    assert len(house.link.submissions) == 1


FORMS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"guided_regex": "a+"}, "guided_regex"),
    ("/v1/chat/completions", {"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
    ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("path", "fields", "field"), FORMS)
async def test_a_grammar_that_a_replica_refuses_is_named_as_the_client_named_it(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    fields: dict[str, Any],
    field: str,
) -> None:
    refused = refuse(InvalidParam("grammar", "one of 5 characters", "one that can be enforced: no"))

    async def submit(
        submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> Refusal:
        return refused

    monkeypatch.setattr(house.link, "submit", submit)
    answer = await house.http.post(path, json={**PROMPTS[path], **fields})
    found = error(answer)
    assert (answer.status_code, found["param"]) == (400, field)
    assert found["message"].startswith(f"'{field}' must be one that can be enforced: no")


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("path", "fields", "field"), FORMS)
async def test_a_grammar_that_gets_too_complex_on_the_way_is_no_fault_of_the_server(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    fields: dict[str, Any],
    field: str,
    streamed: bool,
) -> None:
    """The SDK would send it again by itself after a 500, to cost as much again."""

    async def submit(
        submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> None:
        listener, key = house.link.listeners[submission.key], submission.key
        listener((key, (65,), "a", None, None, None))
        listener((key, (), "", None, reason_of(GuidanceError("Too many items")), None))

    monkeypatch.setattr(house.link, "submit", submit)
    answer = await house.http.post(path, json={**PROMPTS[path], **fields, "stream": streamed})
    if streamed:
        *_, last, done, nothing = answer.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        found = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 400
        found = error(answer)
    assert (found["type"], found["code"]) == ("invalid_request_error", "grammar_too_complex")
    assert found["param"] == field


# ---- the tokenizer and the version --------------------------------------------------------


async def test_tokens_there_and_back(house: House) -> None:
    for text in ("abc", "naïve 🌊", "x" * 5000):
        found = (await house.http.post("/tokenize", json={"prompt": text[:70]})).json()
        assert found["count"] == len(found["tokens"]) == len(text[:70].encode())
        assert found["max_model_len"] == 80
        back = await house.http.post("/detokenize", json={"tokens": found["tokens"]})
        assert back.json() == {"prompt": text[:70]}


async def test_messages_have_tokens_too(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "hé"}], "return_token_strs": True}
    found = (await house.http.post("/tokenize", json=body)).json()
    assert found["count"] == 3
    assert len(found["token_strs"]) == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
    ],
)
async def test_what_cannot_be_told_is_a_400(
    house: House, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = await house.http.post(path, json=body)
    assert (answer.status_code, error(answer)["param"]) == (400, param)
    other = await house.http.post(path, json={**body, "model": "gpt-4"})
    assert other.status_code == 404


async def test_a_key_locks_all_but_what_probes_need(tiny_model_dir: Path) -> None:
    async with open_house(tiny_model_dir, api_key="k") as house:
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/m"),
            ("GET", "/version"),
            ("GET", "/load"),
        ):
            answer = await house.http.request(method, path)
            assert (answer.status_code, error(answer)["code"]) == (401, "invalid_api_key"), path
        for path in ("/health", "/metrics", "/openapi.json"):
            assert (await house.http.get(path)).status_code == 200, path
        version = await house.http.get("/version", headers={"Authorization": "Bearer k"})
        assert list(version.json()) == ["version"]


# ---- what no client should send -----------------------------------------------------------


async def test_an_unknown_method_wears_the_envelope(house: House) -> None:
    for path in ("/v1/models", "/v1/completions", "/nothing"):
        answer = await house.http.request("FOO", path)
        assert answer.status_code in (404, 405)
        assert error(answer)["code"] in ("not_found", "method_not_allowed")


async def test_a_compressed_body_is_refused_by_name(house: House) -> None:
    answer: httpx.Response = await house.http.post(
        "/v1/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"}
    )
    assert (answer.status_code, error(answer)["code"]) == (415, "unsupported_encoding")

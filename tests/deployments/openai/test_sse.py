"""Streams: framing, deltas, and the ways a stream ends."""

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types.chat import ChatCompletionChunk

from deployments.openai import sse
from deployments.openai.call import Usage
from deployments.openai.errors import internal
from deployments.openai.sse import EventStream
from engine.request import FinishReason
from tests.deployments.openai.wire import chat_call, chunks_of, completion_call, events_of

# Text as models write it, and all that a careless reader takes for the end of a line.
TEXT = st.text(
    st.characters(codec="utf-8") | st.sampled_from('\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"\\'),
    max_size=8,
)


def run(call: Any, steps: list[tuple[int, str]], finish: FinishReason = FinishReason.STOP) -> bytes:
    """Stream the steps, then end every choice and the stream."""
    stream = EventStream(call, "fp")
    out = b"".join(stream.push(index, text) for index, text in steps)
    out += b"".join(stream.push(index, "", finish) for index in range(len(call.jobs)))
    return out + stream.end(Usage(2, 3))


def test_a_chat_stream_byte_for_byte() -> None:
    call = chat_call({"stream": True})
    head = (
        f'data: {{"id":"{call.id}","object":"chat.completion.chunk","created":1700000000,'
        '"model":"tiny","system_fingerprint":"fp","choices":[{"index":0,"delta":'
    )
    rest = ',"logprobs":null,"finish_reason":'
    assert run(call, [(0, "hé")]).decode() == (
        head + '{"role":"assistant","content":""}' + rest + "null}]}\n\n"
        + head + '{"content":"hé"}' + rest + "null}]}\n\n"
        + head + "{}" + rest + '"stop"}]}\n\n'
        + "data: [DONE]\n\n"
    )  # fmt: skip


def test_the_role_goes_out_with_the_first_token_even_if_it_does_not_show_yet() -> None:
    stream = EventStream(chat_call({"stream": True}))
    (first,) = events_of(stream.push(0, ""))
    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream.push(0, "") == b""


def test_a_completions_first_token_goes_out_even_if_it_does_not_show_yet() -> None:
    stream = EventStream(completion_call({"stream": True}))
    (first,) = events_of(stream.push(0, ""))
    assert json.loads(first)["choices"][0]["text"] == ""
    assert stream.push(0, "") == b""


def test_an_answer_without_text_has_a_role_and_an_end() -> None:
    chat, completion = (
        chunks_of(run(prepare({"stream": True}), [])) for prepare in (chat_call, completion_call)
    )
    assert [chunk["choices"][0]["finish_reason"] for chunk in chat] == [None, "stop"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in completion] == ["stop"]


def test_the_last_text_goes_out_before_the_end() -> None:
    stream = EventStream(chat_call({"stream": True}))
    stream.push(0, "a")
    text, end = (
        json.loads(e)["choices"][0] for e in events_of(stream.push(0, "b", FinishReason.LENGTH))
    )
    assert (text["delta"], text["finish_reason"]) == ({"content": "b"}, None)
    assert (end["delta"], end["finish_reason"]) == ({}, "length")


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
def test_usage_is_a_last_chunk_and_null_before_when_asked_for(prepare: Any) -> None:
    call = prepare({"stream": True, "stream_options": {"include_usage": True}})
    *chunks, last = chunks_of(run(call, [(0, "a")]))
    assert chunks
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == Usage(2, 3).body()


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
@pytest.mark.parametrize("options", [{}, {"stream_options": {}}, {"stream_options": None}])
def test_usage_is_nowhere_when_not_asked_for(prepare: Any, options: dict[str, Any]) -> None:
    chunks = chunks_of(run(prepare({"stream": True, **options}), [(0, "a")]))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_a_failure_is_an_event_and_then_the_end() -> None:
    stream = EventStream(chat_call({"stream": True}))
    stream.push(0, "a")
    error, done = events_of(stream.fail(internal()))
    assert json.loads(error) == internal().envelope()
    assert done == "[DONE]"


def test_a_fingerprint_may_come_with_the_first_token() -> None:
    call = chat_call({"stream": True, "stream_options": {"include_usage": True}})
    stream = EventStream(call)
    stream.fingerprint = "late"
    chunks = chunks_of(stream.push(0, "a", FinishReason.STOP) + stream.end(Usage(1, 1)))
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"late"}


def test_a_keep_alive_is_a_comment_to_clients() -> None:
    assert sse.KEEP_ALIVE.startswith(b": ")
    assert list(SSEDecoder().iter_bytes(iter([sse.KEEP_ALIVE]))) == []


def test_a_models_name_is_escaped() -> None:
    assert sse.event({"model": 'a"\n\u2028b'}) == b'data: {"model":"a\\"\\n\\u2028b"}\n\n'


LOGPROBS = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{}], "text_offset": [0]}


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
def test_log_probabilities_go_out_with_their_token_whether_its_text_does_or_not(
    prepare: Any,
) -> None:
    stream = EventStream(prepare({"stream": True}))
    pushes = [("", None), ("a", None), ("", FinishReason.STOP)]
    out = b"".join(stream.push(0, text, end, LOGPROBS) for text, end in pushes)
    choices = [chunk["choices"][0] for chunk in chunks_of(out + stream.end(Usage(1, 3)))]
    with_text = [c for c in choices if c["logprobs"] is not None]
    assert [c["logprobs"] for c in with_text] == [LOGPROBS] * 3
    texts = [c["text"] if "text" in c else c["delta"]["content"] for c in with_text]
    assert texts == ["", "a", ""]
    assert [c["finish_reason"] for c in choices if c["logprobs"] is None][-1] == "stop"
    assert all("finish_reason" in c for c in choices)


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
@pytest.mark.parametrize("include", [True, False])
def test_running_usage_stands_on_every_chunk(prepare: Any, include: bool) -> None:
    options = {"include_usage": include, "continuous_usage_stats": True}
    stream = EventStream(prepare({"stream": True, "stream_options": options}))
    out = stream.push(0, "", None, None, Usage(2, 1)) + stream.push(0, "a", None, None, Usage(2, 2))
    out += stream.push(0, "b", None, LOGPROBS, Usage(2, 3))
    out += stream.push(0, "c", FinishReason.STOP, None, Usage(2, 4))
    *chunks, last = chunks_of(out + stream.end(Usage(2, 4)))
    seen = [chunk["usage"]["completion_tokens"] for chunk in (*chunks, last)]
    assert seen == [1, 2, 3, 4, 4] + [4] * include
    assert (last["choices"] == []) == include


def test_the_tier_used_stands_on_every_chunk() -> None:
    options = {"stream": True, "service_tier": "auto", "stream_options": {"include_usage": True}}
    chunks = chunks_of(run(chat_call(options), [(0, "a")]))
    assert [chunk["service_tier"] for chunk in chunks] == ["default"] * 4


def test_each_choice_has_one_role_and_one_end() -> None:
    chunks = chunks_of(run(chat_call({"stream": True, "n": 3}), [(2, "a"), (0, ""), (2, "b")]))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in own].count("assistant") == 1
        assert own[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in own].count("stop") == 1
        assert own[-1]["finish_reason"] == "stop"


@given(steps=st.lists(st.tuples(st.integers(0, 2), TEXT), max_size=12), usage=st.booleans())
@settings(max_examples=100, deadline=None)
def test_joined_deltas_are_the_text_of_each_choice(
    steps: list[tuple[int, str]], usage: bool
) -> None:
    options = {"stream": True, "stream_options": {"include_usage": usage}}
    call = completion_call({"prompt": ["a", "b", "c"], **options})
    texts: dict[int, str] = defaultdict(str)
    ends: list[int] = []
    for chunk in chunks_of(run(call, steps)):
        for choice in chunk["choices"]:
            assert choice["index"] not in ends
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"] is not None:
                ends.append(choice["index"])
    assert sorted(ends) == [0, 1, 2]
    for index in range(3):
        assert texts[index] == "".join(text for at, text in steps if at == index)


@given(texts=st.lists(TEXT, max_size=8), cuts=st.lists(st.integers(0, 3000), max_size=4))
@settings(max_examples=100, deadline=None)
def test_the_sdk_reads_the_same_however_the_bytes_are_cut(
    texts: list[str], cuts: list[int]
) -> None:
    body = run(chat_call({"stream": True}), [(0, text) for text in texts])
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(edges)]
    *events, done = [event.data for event in SSEDecoder().iter_bytes(iter(pieces))]
    assert done == "[DONE]"
    deltas = [
        ChatCompletionChunk.model_validate_json(event, strict=True).choices[0].delta
        for event in events
    ]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "".join(texts)


@given(texts=st.lists(TEXT, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_reader_that_splits_lines_by_unicode_finds_whole_events(texts: list[str]) -> None:
    body = run(chat_call({"stream": True}), [(0, text) for text in texts])
    lines = [line for line in body.decode().splitlines() if line]
    assert lines == [f"data: {event}" for event in events_of(body)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


@given(value=JSON, depth=st.integers(0, 5))
def test_json_in_parts_is_the_same_json(value: Any, depth: int) -> None:
    assert sse.in_parts(value, depth) == sse.compact(value)
    assert sse.in_parts([value] * 100, 0) == sse.compact([value] * 100)


def test_no_part_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder keeps all other threads waiting until it is done."""
    longest = 0

    def encode(value: Any) -> str:
        nonlocal longest
        longest = max(longest, len(text := json.dumps(value)))
        return text

    monkeypatch.setattr(sse, "_dumps", encode)
    entries: list[Any] = [{"token": "a", "top": [{"token": "b"}] * 20}] * 5000
    body = {"choices": [{"logprobs": {"content": entries}}] * 2}
    text = sse.in_parts(body, 4)
    assert len(text) > 50 * longest
    logprobs = dict.fromkeys(LOGPROBS, entries)
    EventStream(completion_call({"stream": True})).push(0, "a", None, logprobs)
    assert longest < 20_000

"""Every field of a request: what is accepted, and what is refused by name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from deployments.openai import sse
from deployments.openai.errors import ApiError, BadRequest
from deployments.openai.models import ChatRequest, CompletionRequest, validated
from deployments.openai.unbuilt import CHAT, COMPLETIONS
from tests.deployments.openai.wire import SERVED, ByteTokenizer, chat_call, completion_call

USER = {"role": "user", "content": "hi"}

REFUSED: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", [1]),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_p", -1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("presence_penalty", 2.01),
    ("presence_penalty", -2.01),
    ("frequency_penalty", 2.01),
    ("frequency_penalty", -2.01),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("max_tokens", -1),
    ("max_tokens", True),
    ("max_tokens", "5"),
    ("max_tokens", 5.0),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 1.5),
    ("seed", "7"),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a", "b", "c", "d", "e"]),
    ("stop", 5),
    ("stop", ["a", 5]),
    ("stop", {"a": 1}),
    ("stop_token_ids", [300]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", 5),
    ("max_tokens", 2**31),
    ("ignore_eos", 1),
    ("ignore_eos", "true"),
    ("stream", "true"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),  # without a stream
    ("stream_options", []),
    ("priority", True),
    ("priority", 1.5),
    ("priority", "abc"),
    ("priority", "7"),
    ("n", 0),
    ("n", "2"),
    ("n", True),
    ("n", 129),
    ("min_tokens", -1),
    ("min_tokens", 101),
    ("logit_bias", {"999999": 5}),
    ("logit_bias", {"AI": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"01": 1}),
    ("logit_bias", {"5": 100.5}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": True}),
    ("logit_bias", {"5": None}),
    ("logit_bias", []),
    ("stream_options", {"continuous_usage_stats": True}),  # without a stream
    ("timeout_ms", 0),
    ("timeout_ms", 2**31),
    ("first_token_timeout_ms", 1.5),
    ("service_tier", 5),
    ("cache_salt", ""),
    ("cache_salt", "s" * 257),
    ("cache_salt", 5),
    ("priority", 1_000_001),
    ("priority", -1_000_001),
    ("service_tier", "flex"),
    ("service_tier", "priority"),
    ("model", 5),
]

ACCEPTED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 2},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"top_k": -1},
    {"top_k": 0},
    {"min_p": 0},
    {"min_p": 1},
    {"presence_penalty": -2},
    {"frequency_penalty": 2},
    {"repetition_penalty": 0.5},
    {"max_tokens": 1},
    {"n": 2},
    {"min_tokens": 1},
    {"logit_bias": {}},
    {"logit_bias": {"0": -100, "299": 0.5}},
    {"timeout_ms": 1, "first_token_timeout_ms": 2**31 - 1},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1},
    {"stop": "END"},
    {"stop": []},
    {"stop": ["a", "b", "c", "d"]},
    {"stop_token_ids": [0, 299]},
    {"stop_token_ids": []},
    {"stop_token_ids": [5, 5]},
    {"top_k": 2**31 - 1},
    {"ignore_eos": True},
    {"stream": True},
    {"stream_options": {}},
    {"stream_options": {"include_usage": None}},
    {"stream_options": {"include_usage": False}},
    {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"priority": -1_000},
    {"cache_salt": "s" * 256},
    {"service_tier": "auto"},
    {"service_tier": "default"},
    {"user": "someone", "metadata": {"a": "b"}, "store": True, "x": [1, {"y": None}]},
    {"safety_identifier": "s", "prompt_cache_key": "k", "verbosity": "low"},
]


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
@pytest.mark.parametrize(("field", "value"), REFUSED, ids=str)
def test_a_value_out_of_range_is_refused_by_name(prepare: Any, field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        prepare({field: value})
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.split(".")[0] == field
    assert f"'{field}" in caught.value.message


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_a_value_in_range_or_unknown_is_no_error(prepare: Any, fields: dict[str, Any]) -> None:
    assert prepare(fields).jobs


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
def test_nulls_are_as_if_absent(prepare: Any) -> None:
    names = {*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"messages", "prompt"}
    nulls = dict.fromkeys([*names, "logprobs", "tools", "n", "response_format", "unheard_of"])
    assert prepare(nulls) == prepare({})


def test_a_refusal_names_field_value_and_limit() -> None:
    with pytest.raises(BadRequest, match=r"'temperature' must be at most 2, not 2\.5"):
        chat_call({"temperature": 2.5})


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(word: str) -> None:
    body = f'{{"prompt": "hi", "temperature": {word}}}'.encode()
    with pytest.raises(BadRequest):
        completion_call(body)


def test_parameters_reach_the_engine_unchanged() -> None:
    call = completion_call(
        {
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "presence_penalty": 0.2,
            "frequency_penalty": -0.3,
            "repetition_penalty": 1.1,
            "seed": 42,
            "stop": "END",
            "stop_token_ids": [5],
            "ignore_eos": True,
        }
    )
    (job,) = call.jobs
    params = job.params
    assert (params.max_tokens, params.temperature, params.top_p) == (7, 0.5, 0.9)
    assert (params.top_k, params.min_p) == (40, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.2, -0.3)
    assert (params.repetition_penalty, params.seed) == (1.1, 42)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("END",), (5,), True)


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
@pytest.mark.parametrize("word", ["max_tokens", "max_completion_tokens"])
def test_ray_53922_max_completion_tokens_is_honoured(prepare: Any, word: str) -> None:
    assert prepare({word: 10}).jobs[0].params.max_tokens == 10


def test_max_completion_tokens_wins() -> None:
    call = chat_call({"max_tokens": 3, "max_completion_tokens": 10})
    assert call.jobs[0].params.max_tokens == 10


def roles(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    tokenizer = ByteTokenizer()
    chat_call({"messages": messages}, tokenizer=tokenizer)
    return tokenizer.conversations[0]


def test_an_assistants_turn_may_be_empty() -> None:
    for nothing in ({"content": None}, {"content": ""}, {"content": []}, {}):
        turns = roles([USER, {"role": "assistant", **nothing}, USER])
        assert turns[1] == {"role": "assistant", "content": ""}


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert roles([{"role": "user", "content": parts}])[0]["content"] == "one\ntwo"


def test_a_developers_turn_is_a_systems_turn() -> None:
    assert roles([{"role": "developer", "content": "x"}, USER])[0]["role"] == "system"


def test_nulls_and_unknown_fields_of_a_turn_mean_nothing() -> None:
    turn = {**USER, "name": None, "tool_calls": None, "refusal": None, "annotations": []}
    assert roles([turn]) == [USER]


def test_a_name_reaches_the_template() -> None:
    assert roles([{**USER, "name": "ann"}]) == [{**USER, "name": "ann"}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"role": "user", "content": []}, "messages.0.content"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages.0.content"),
        ({"role": "user", "content": ["x"]}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.0.content"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages.0.content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages.0.content",
        ),
        ({"content": "x"}, "messages.0.role"),
        ({"role": "robot", "content": "x"}, "messages.0.role"),
        ({"role": ["user"], "content": "x"}, "messages.0.role"),
        ({"role": "function", "content": "x", "name": "f"}, "messages.0.role"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages.0"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages.0.tool_calls.0.function"),
        ({"role": "assistant", "audio": {"id": "1"}}, "messages.0"),
        ({"role": "user", "content": "x", "name": 5}, "messages.0.name"),
        ("hi", "messages.0"),
        (None, "messages.0"),
    ],
    ids=str,
)
def test_a_bad_turn_is_refused_by_its_path(message: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat_call({"messages": [message]})
    assert caught.value.param == param


@pytest.mark.parametrize("messages", [[], "hi", {}, 5])
def test_vllm_7746_empty_or_wrong_messages(messages: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        chat_call({"messages": messages})
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        [],
        [""],
        [[]],
        ["a", ""],
        [[1], []],
        5,
        {},
        True,
        [True],
        [[True]],
        ["a", 1],
        [1, "a"],
        [[1], "a"],
        [[1.0]],
        [1.0],
        [[[1]]],
        [None],
        [300],
        [-1],
        [[1], [300]],
        [10**30],
    ],
    ids=str,
)
def test_vllm_7746_empty_or_wrong_prompts(prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        completion_call({"prompt": prompt})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prepare", "field"), [(chat_call, "messages"), (completion_call, "prompt")]
)
@pytest.mark.parametrize("nothing", [b"{}", b'{"messages": null, "prompt": null}'])
def test_the_prompt_is_required(prepare: Any, field: str, nothing: bytes) -> None:
    with pytest.raises(BadRequest, match="is required") as caught:
        prepare(nothing)
    assert caught.value.param == field


def test_refusals_never_repeat_what_a_person_wrote() -> None:
    for fields in ({"prompt": {"secret": 1}}, {"prompt": ["secret", 1]}, {"stop": {"secret": 1}}):
        with pytest.raises(BadRequest) as caught:
            completion_call(fields)
        assert "secret" not in caught.value.message
    with pytest.raises(BadRequest) as caught:
        chat_call({"messages": "secret"})
    assert "secret" not in caught.value.message


def test_the_schema_shows_all_forms_of_prompt_and_content() -> None:
    prompt = CompletionRequest.model_json_schema()["properties"]["prompt"]
    assert len(prompt["anyOf"]) == 4
    message = TypeAdapter(ChatRequest).json_schema()["$defs"]["Message"]
    assert {form["type"] for form in message["properties"]["content"]["anyOf"]} == {
        "string",
        "array",
        "null",
    }


def test_validated_takes_what_is_already_an_object() -> None:
    assert validated(ChatRequest, {"messages": [USER]}).messages[0].content == "hi"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
TURNS = st.lists(st.fixed_dictionaries({}, optional={"role": JSON, "content": JSON, "name": JSON}))
KNOWN = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *CHAT, *COMPLETIONS})


@given(st.dictionaries(st.sampled_from(KNOWN), JSON, max_size=3), JSON | TURNS)
@settings(max_examples=150, deadline=None)
def test_whatever_a_field_holds_the_answer_is_a_call_or_a_4xx(
    fields: dict[str, Any], prompt: Any
) -> None:
    for prepare in (chat_call, completion_call):
        body = {"messages": prompt, "prompt": prompt, **fields}
        try:
            jobs, error = prepare(body).jobs, None
        except ApiError as refusal:
            jobs, error = (), refusal
        assert jobs or (error is not None and 400 <= error.status < 500)
        assert error is None or sse.error_events(error)


def test_an_empty_stop_is_refused_in_the_words_of_the_api() -> None:
    with pytest.raises(BadRequest, match="'stop' must not hold an empty string"):
        chat_call({"stop": ""})


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
@pytest.mark.parametrize(
    "field",
    ["max_tokens", "max_completion_tokens", "min_tokens", "top_k", "n", "priority", "timeout_ms"],
)
def test_numbers_with_as_many_digits_as_python_reads_are_refused(prepare: Any, field: str) -> None:
    """A sum with one of them has more than it spells."""
    with pytest.raises(BadRequest) as caught:
        prepare({field: 10**4300 - 1})
    assert caught.value.param == field
    assert len(caught.value.message) < 200


def test_lists_that_each_step_of_the_engine_reads_are_bounded() -> None:
    served = replace(SERVED, vocab_size=5000)
    most = range(1024)
    for fields, field in (
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"stop_token_ids": [*range(1025)]}, "stop_token_ids"),
    ):
        with pytest.raises(BadRequest, match="at most 1024") as caught:
            chat_call(fields, served=served)
        assert caught.value.param == field
        assert "1025" in caught.value.message
    fields = {"logit_bias": dict.fromkeys(map(str, most), 1), "stop_token_ids": [*most, *most]}
    params = chat_call(fields, served=served).jobs[0].params
    assert len(params.logit_bias) == 1024
    assert params.stop_token_ids == tuple(most)
    assert len(chat_call({"stop": "x" * 1000}).jobs[0].params.stop[0]) == 1000
    with pytest.raises(BadRequest, match=r"'stop'.*at most 1000 characters, not one of 1001"):
        chat_call({"stop": ["a", "x" * 1001]})

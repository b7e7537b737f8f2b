"""What people's own libraries do with a server: openai's, LangChain's and litellm's."""

import json
import os
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

from tests.deployments.conftest import Server, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(300)]

MODEL = "SmolLM2-135M-Instruct"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


class Capital(BaseModel):
    """The capital of a country."""

    model_config = ConfigDict(extra="forbid")

    country: Literal["France", "Spain", "Italy"]
    capital: Literal["Paris", "Madrid", "Rome"]
    in_europe: bool


class GetWeather(BaseModel):
    """Tell the weather in a city."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city.",
        "parameters": GetWeather.model_json_schema(),
    },
}


@pytest.fixture
def server(small_pools: Server) -> Server:
    eventually(small_pools.idle)
    return small_pools


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **more: Any) -> Any:
    arguments = {"messages": FRANCE, "temperature": 0, "max_tokens": 12, **more}
    return client.chat.completions.create(model=MODEL, **arguments)


# ---- openai ---------------------------------------------------------------------------


def test_openai_choices_differ_and_repeat_with_their_seed(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = ask(client, n=3, seed=7, temperature=1.5)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens <= 36
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first
    alone = ask(client, seed=7, temperature=1.5).choices[0].message.content
    assert alone == first[0]


def test_openai_a_prompt_with_several_choices_counts_once(client: openai.OpenAI) -> None:
    one, four = ask(client), ask(client, n=4)
    assert four.usage.prompt_tokens == one.usage.prompt_tokens
    assert four.usage.completion_tokens == 4 * one.usage.completion_tokens


def test_openai_chat_logprobs_streamed_are_those_of_the_whole(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True, top_logprobs=2).choices[0]
    streamed = []
    for chunk in ask(client, logprobs=True, top_logprobs=2, stream=True):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed += choice.logprobs.content
    assert streamed == whole.logprobs.content
    assert b"".join(bytes(t.bytes) for t in streamed).decode().startswith(whole.message.content)
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in streamed)
    assert all(t.top_logprobs[0].token == t.token for t in streamed)  # it was greedy


def test_openai_echo_tells_how_likely_the_prompt_was(client: openai.OpenAI) -> None:
    text = "The capital of France is Paris"
    answer = client.completions.create(
        model=MODEL, prompt=text, echo=True, logprobs=1, max_tokens=0
    )
    choice = answer.choices[0]
    assert choice.text == text
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    probs = choice.logprobs
    assert probs is not None
    assert probs.tokens is not None
    assert probs.token_logprobs is not None
    assert "".join(probs.tokens) == text
    assert probs.token_logprobs[0] is None
    assert all(value <= 0 for value in probs.token_logprobs[1:])


@pytest.mark.parametrize("stream", [True, False])
def test_openai_echo_tells_the_same_of_the_prompt_with_each_choice(
    client: openai.OpenAI, stream: bool
) -> None:
    text = "The capital of France is Paris"
    asked: Any = {"n": 3, "echo": True, "logprobs": 1, "max_tokens": 2, "stream": stream}
    answer = client.completions.create(model=MODEL, prompt=text, **asked)
    told: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            told[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
    prompts = [values[:-2] for values in told.values()]
    assert prompts[0] == prompts[1] == prompts[2]
    assert prompts[0][0] is None
    assert all(value <= 0 for value in prompts[0][1:])


def test_openai_usage_runs_along_with_a_stream(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(ask(client, stream=True, stream_options=options))
    totals = [chunk.usage.completion_tokens for chunk in chunks]
    assert totals == sorted(totals)
    assert totals[-1] == ask(client).usage.completion_tokens


def test_openai_a_parsed_answer_is_of_the_class(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=FRANCE, temperature=0, response_format=Capital, max_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)


def test_openai_a_json_object_is_one(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=60, seed=1)
    choice = answer.choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")


def test_openai_the_model_is_retrieved_by_its_name(client: openai.OpenAI) -> None:
    assert client.models.retrieve(MODEL) == client.models.list().data[0]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("another/model")


def test_openai_a_guided_choice_is_one_of_them(client: openai.OpenAI) -> None:
    for seed in range(4):
        answer = ask(
            client,
            temperature=2,
            seed=seed,
            extra_body={"structured_outputs": {"choice": ["red wine", "green tea"]}},
        )
        assert answer.choices[0].message.content in ("red wine", "green tea")
        assert answer.choices[0].finish_reason == "stop"


def test_openai_a_forced_call_fits_its_schema(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = ask(client, messages=WEATHER, tools=[TOOL], tool_choice=choice, max_tokens=80)
        assert answer.choices[0].finish_reason == "tool_calls"
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather"
        GetWeather.model_validate_json(call.function.arguments)


def test_openai_streamed_calls_are_those_of_the_whole_answer(client: openai.OpenAI) -> None:
    def forced(**more: Any) -> Any:
        return ask(
            client, messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=90, **more
        )

    whole = forced().choices[0]
    calls: dict[int, list[str]] = {}
    content, finish = "", None
    for chunk in forced(stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                name_and_arguments = calls.setdefault(call.index, ["", ""])
                name_and_arguments[0] += call.function.name or ""
                name_and_arguments[1] += call.function.arguments or ""
    functions = [call.function for call in whole.message.tool_calls]
    assert [calls[i] for i in range(len(calls))] == [[f.name, f.arguments] for f in functions]
    assert (content, finish) == (whole.message.content or "", whole.finish_reason)


def test_openai_one_call_is_one_where_calls_may_not_be_parallel(client: openai.OpenAI) -> None:
    answer = ask(
        client,
        messages=WEATHER,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=90,
    )
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.choices[0].finish_reason == "tool_calls"


def test_openai_a_time_limit_ends_the_request_and_is_not_tried_again(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client:
        before = server.total("admission_rejections_total")
        with pytest.raises(openai.InternalServerError) as caught:
            ask(
                client,
                max_tokens=400,
                extra_body={"ignore_eos": True},
                extra_headers={"X-Request-Timeout-Ms": "1"},
            )
        assert caught.value.status_code == 504
        assert caught.value.code == "deadline_exceeded"
        eventually(server.idle)
        assert server.total("admission_rejections_total") <= before + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"logit_bias": {"999999": 5}},
        {"logit_bias": {"AI": 1}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}},
        {"extra_body": {"structured_outputs": {"regex": "("}}},
    ],
)
def test_vllm_16529_a_bad_bias_or_schema_harms_nobody_else(
    client: openai.OpenAI, wrong: dict[str, Any]
) -> None:
    stream = ask(client, stream=True, max_tokens=40)
    first = next(stream)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **wrong)
    assert caught.value.param
    rest = [first, *stream]
    assert rest[-1].choices[0].finish_reason in ("stop", "length")


# ---- LangChain ------------------------------------------------------------------------


@pytest.fixture
def chain(server: Server) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{server.url}/v1",
        api_key=SecretStr("none"),
        model=MODEL,
        temperature=0,
        max_completion_tokens=80,
        max_retries=0,
    )


def test_langchain_streams_what_it_invokes(chain: Any) -> None:
    whole = chain.invoke(FRANCE)
    assert "Paris" in whole.content
    assert "".join(part.content for part in chain.stream(FRANCE)) == whole.content
    assert whole.usage_metadata["output_tokens"] > 0


def test_langchain_structured_output_is_of_the_class(chain: Any) -> None:
    answer = chain.with_structured_output(Capital, method="json_schema").invoke(FRANCE)
    assert isinstance(answer, Capital)


def test_langchain_calls_the_tool_that_is_bound(chain: Any) -> None:
    answer = chain.bind_tools([GetWeather], tool_choice="any").invoke(WEATHER)
    assert answer.tool_calls
    for call in answer.tool_calls:
        assert call["name"] == "GetWeather"
        GetWeather.model_validate(call["args"])


# ---- litellm --------------------------------------------------------------------------


@pytest.fixture
def completion(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    # It would fetch a list of prices when it is imported.
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    def complete(**more: Any) -> Any:
        arguments = {"messages": FRANCE, "temperature": 0, "max_tokens": 12, **more}
        return litellm.completion(
            model=f"openai/{MODEL}",
            api_base=f"{server.url}/v1",
            api_key="none",
            num_retries=0,
            **arguments,
        )

    return complete


def test_litellm_streams_what_it_completes(completion: Any) -> None:
    whole = completion().choices[0].message.content
    assert "Paris" in whole
    parts = [chunk.choices[0].delta.content or "" for chunk in completion(stream=True)]
    assert "".join(parts) == whole


def test_litellm_calls_tools_and_takes_their_answers(completion: Any) -> None:
    message = (
        completion(messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=80)
        .choices[0]
        .message
    )
    call = message.tool_calls[0]
    GetWeather.model_validate_json(call.function.arguments)
    answered = [
        *WEATHER,
        message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, rain"},
    ]
    assert completion(messages=answered, tools=[TOOL], tool_choice="none").choices


def test_litellm_names_the_error(completion: Any) -> None:
    import litellm

    with pytest.raises(litellm.BadRequestError) as caught:
        completion(logit_bias={"999999": 5})
    assert "999999" in str(caught.value)

"""Tokens of texts and of conversations."""

import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.openai.errors import ApiError, BadRequest
from deployments.openai.tokenize import detokenize, tokenize
from deployments.openai.tool_formats import HERMES, Dialect
from tests.deployments.openai.wire import BOS, SERVED, ByteTokenizer, chat_call


class Both(ByteTokenizer):
    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join("<s>" if id == BOS else chr(id) for id in token_ids)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [chr(id) for id in ids]


def tell(**fields: Any) -> dict[str, Any]:
    return tokenize(json.dumps(fields).encode(), Both(), SERVED)


USER = [{"role": "user", "content": "hi"}]


def test_a_texts_tokens_are_those_that_a_completion_would_have() -> None:
    assert tell(prompt="ab") == {"tokens": [BOS, 97, 98], "count": 3, "max_model_len": 100}
    assert tell(prompt="ab", add_special_tokens=False)["tokens"] == [97, 98]
    assert tell(prompt="", add_special_tokens=False)["count"] == 0
    assert tell(prompt="ab", return_token_strs=True, add_special_tokens=False)["token_strs"] == [
        "a",
        "b",
    ]


def test_a_conversations_tokens_are_those_that_a_chat_would_have() -> None:
    assert bytes(tell(messages=USER)["tokens"]) == b"u:hi;a:"
    assert bytes(tell(messages=USER, add_generation_prompt=False)["tokens"]) == b"u:hi;"
    assert tell(messages=USER, add_special_tokens=True)["tokens"][0] == BOS


def test_special_tokens_show_again() -> None:
    body = json.dumps({"tokens": [BOS, 97]}).encode()
    assert detokenize(body, Both(), SERVED) == {"prompt": "<s>a"}
    assert detokenize(b'{"tokens": []}', Both(), SERVED) == {"prompt": ""}


@pytest.mark.parametrize(
    "fields", [{}, {"prompt": "a", "messages": USER}, {"messages": []}, {"prompt": ["a"]}]
)
def test_it_is_a_text_or_a_conversation(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        tell(**fields)


def test_a_text_that_would_keep_a_core_busy_is_refused_unread() -> None:
    served = replace(SERVED, longest_token=4)
    for body in (
        {"prompt": "x" * 1000},
        {"messages": [{"role": "user", "content": "x" * 1000}]},
    ):
        with pytest.raises(ApiError, match="maximum context length"):
            tokenize(json.dumps(body).encode(), Both(), served)


def test_tools_are_told_or_refused_but_not_ignored() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(BadRequest, match="knows no tools") as caught:
        tell(messages=USER, tools=tools)
    assert caught.value.param == "tools"


def test_tools_have_the_tokens_that_a_chat_with_them_has() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]

    class Told(Both):
        def apply_chat_template(self, *args: Any, tools: Any = (), **options: Any) -> str:
            names = "".join(f"t:{tool['function']['name']};" for tool in tools)
            return names + super().apply_chat_template(*args, **options)

    served = replace(SERVED, dialect=Dialect(HERMES))
    body = {"messages": USER, "tools": tools}
    told = tokenize(json.dumps(body).encode(), Told(), served)
    assert bytes(told["tokens"]) == b"t:f;u:hi;a:"
    assert tuple(told["tokens"]) == chat_call(body, None, served, Told()).jobs[0].prompt
    body["tool_choice"] = "none"
    told = tokenize(json.dumps(body).encode(), Told(), served)
    assert bytes(told["tokens"]) == b"u:hi;a:"
    assert tuple(told["tokens"]) == chat_call(body, None, served, Told()).jobs[0].prompt
    body["tool_choice"] = {"type": "function", "function": {"name": "g"}}
    with pytest.raises(BadRequest) as caught:
        tokenize(json.dumps(body).encode(), Told(), served)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("field", "value", "nothing"),
    [
        ("continue_final_message", True, False),
        ("chat_template", "{{ messages }}", None),
        ("chat_template_kwargs", {"a": 1}, {}),
        ("documents", [{"text": "x"}], []),
        ("functions", [{"name": "f"}], []),
        ("mm_processor_kwargs", {"a": 1}, {}),
        ("reasoning_effort", "low", None),
    ],
)
def test_what_would_change_the_tokens_of_a_chat_is_refused_here_too(
    field: str, value: object, nothing: object
) -> None:
    for ask in (tell, lambda **fields: chat_call(fields)):
        with pytest.raises(BadRequest) as caught:
            ask(messages=USER, **{field: value})
        assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")
    assert tell(messages=USER, **{field: nothing}) == tell(messages=USER)

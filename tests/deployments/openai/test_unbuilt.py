"""What is known but not built is refused, and asking for nothing is fine."""

from typing import Any

import pytest

from deployments.openai.errors import BadRequest
from deployments.openai.unbuilt import CHAT, COMPLETIONS
from tests.deployments.openai.wire import chat_call, completion_call

# What each field looks like when someone means it.
MEANT: dict[str, list[Any]] = {
    "prompt_logprobs": [0, 1],
    "use_beam_search": [True],
    "length_penalty": [1.2],
    "bad_words": [["x"]],
    "allowed_token_ids": [[1]],
    "skip_special_tokens": [False],
    "include_stop_str_in_output": [True],
    "return_token_ids": [True],
    "truncate_prompt_tokens": [5],
}
MEANT_IN_CHAT: dict[str, list[Any]] = {
    **MEANT,
    "functions": [[{"name": "f"}]],
    "function_call": ["auto", {"name": "f"}],
    "audio": [{"voice": "x", "format": "wav"}],
    "modalities": [["text", "audio"]],
    "web_search_options": [{}],
    "echo": [True],
    "add_generation_prompt": [False],
    "continue_final_message": [True],
    "add_special_tokens": [True],
    "chat_template": ["{{ x }}"],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "documents": [[{"text": "x"}]],
}
MEANT_IN_COMPLETIONS: dict[str, list[Any]] = {
    **MEANT,
    "suffix": ["end"],
    "add_special_tokens": [False],
}


def pairs(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), pairs(MEANT_IN_CHAT), ids=str)
def test_chat_refuses_what_it_cannot_do(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match="not supported yet") as caught:
        chat_call({name: value})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(("name", "value"), pairs(MEANT_IN_COMPLETIONS), ids=str)
def test_completions_refuse_what_they_cannot_do(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match="not supported yet") as caught:
        completion_call({name: value})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("name", sorted(CHAT))
def test_chat_takes_the_values_that_ask_for_nothing(name: str) -> None:
    for value in (*CHAT[name], None):
        assert chat_call({name: value}) == chat_call({})


@pytest.mark.parametrize("name", sorted(COMPLETIONS))
def test_completions_take_the_values_that_ask_for_nothing(name: str) -> None:
    for value in (*COMPLETIONS[name], None):
        assert completion_call({name: value}) == completion_call({})


def test_no_field_is_without_a_value_that_is_refused() -> None:
    for table in (CHAT, COMPLETIONS):
        for name in table:
            with pytest.raises(BadRequest):
                (chat_call if table is CHAT else completion_call)({name: "something"})

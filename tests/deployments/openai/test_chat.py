"""Chat: the template, its beginning-of-sequence token, and the answer."""

from dataclasses import replace
from typing import Any

import pytest
from jinja2 import TemplateError
from openai.types.chat import ChatCompletion
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from deployments.openai.call import Choice, Usage
from deployments.openai.errors import BadRequest
from engine.request import FinishReason
from tests.deployments.openai.wire import BOS, SERVED, ByteTokenizer, chat_call

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}go{% endif %}"
)


def real_tokenizer(template: str | None) -> Any:
    """A tokenizer that puts a beginning-of-sequence token before every text by itself."""
    raw = Tokenizer(models.WordLevel({"<s>": 0, "<unk>": 1, "hi": 2, "go": 3}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens(["<s>"])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = template
    return tokenizer


def test_vllm_4688_a_template_that_carries_bos_gives_exactly_one() -> None:
    tokenizer = real_tokenizer(TEMPLATE)
    assert tokenizer.encode("hi") == [0, 2]
    assert chat_call({}, tokenizer=tokenizer).jobs[0].prompt == (0, 2, 3)


def test_the_prompt_asks_for_an_assistants_turn() -> None:
    prompt = chat_call({}).jobs[0].prompt
    assert bytes(prompt) == b"u:hi;a:"
    assert BOS not in prompt


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(BadRequest, match="no chat template"):
        chat_call({}, tokenizer=real_tokenizer(None))


def test_what_a_template_refuses_is_a_400() -> None:
    class Strict(ByteTokenizer):
        def apply_chat_template(self, *args: Any, **options: Any) -> str:
            raise TemplateError("roles must alternate")

    with pytest.raises(BadRequest, match="roles must alternate") as caught:
        chat_call({}, tokenizer=Strict())
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] + 5 }}",
        "{{ messages | sum }}",
        "{{ 1 // 0 }}",
        "{{ range(10 ** 9) }}",
        "{{ messages[0].content.__class__.mro() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages | wrong }}",
    ],
)
def test_a_template_that_fails_is_a_400_that_repeats_no_message(template: str) -> None:
    tokenizer = real_tokenizer(template)
    messages = [{"role": "user", "content": "secret"}]
    with pytest.raises(BadRequest, match="chat template") as caught:
        chat_call({"messages": messages}, tokenizer=tokenizer)
    assert caught.value.param == "messages"
    assert "secret" not in caught.value.message


def test_a_template_that_writes_nothing_is_a_400() -> None:
    with pytest.raises(BadRequest, match="must not be empty"):
        chat_call({}, tokenizer=real_tokenizer("{# nothing #}"))


@pytest.mark.parametrize("finish", list(FinishReason))
def test_the_answer_reads_as_the_sdk_reads_it(finish: FinishReason) -> None:
    body = chat_call({}).answer([Choice("hello", finish)], Usage(3, 4), "fp")
    answer = ChatCompletion.model_validate(body, strict=True)
    assert not answer.model_extra
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.created, answer.model) == (
        "chat.completion",
        1_700_000_000,
        SERVED.name,
    )
    assert answer.system_fingerprint == "fp"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason) == (0, finish.value)
    assert (choice.message.role, choice.message.content) == ("assistant", "hello")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    assert answer.usage.total_tokens == 7
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_the_tier_used_is_echoed_only_to_who_asked() -> None:
    choices = [Choice("x", FinishReason.STOP)]
    assert "service_tier" not in chat_call({}).answer(choices, Usage(1, 1), None)
    served = replace(SERVED, tiers={"flex": -1})
    for asked, used in (("auto", "default"), ("default", "default"), ("flex", "flex")):
        call = chat_call({"service_tier": asked}, served=served)
        answer = call.answer(choices, Usage(1, 1), None)
        assert answer["service_tier"] == used
        assert answer["system_fingerprint"] is None

"""Completions: four forms of prompt, one choice for each."""

from typing import Any

import pytest
from openai.types import Completion

from deployments.openai.call import Choice, Usage
from deployments.openai.errors import BadRequest
from engine.request import FinishReason
from tests.deployments.openai.wire import BOS, SERVED, completion_call


@pytest.mark.parametrize(
    ("prompt", "jobs"),
    [
        ("ab", [(BOS, 97, 98)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        (["a"], [(BOS, 97)]),
        ([5, 6], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        ([[0]], [(0,)]),
    ],
)
def test_each_form_of_prompt_gives_a_job_for_each_prompt(
    prompt: Any, jobs: list[tuple[int, ...]]
) -> None:
    call = completion_call({"prompt": prompt})
    assert [job.prompt for job in call.jobs] == jobs


def test_too_many_prompts_are_refused() -> None:
    assert len(completion_call({"prompt": ["a"] * SERVED.max_prompts}).jobs) == SERVED.max_prompts
    with pytest.raises(BadRequest, match="at most 128 prompts, not 129") as caught:
        completion_call({"prompt": ["a"] * (SERVED.max_prompts + 1)})
    assert caught.value.param == "prompt"


def test_the_answer_reads_as_the_sdk_reads_it() -> None:
    call = completion_call({"prompt": ["a", "b"]})
    choices = [Choice("one", FinishReason.STOP), Choice("two", FinishReason.LENGTH)]
    answer = Completion.model_validate(call.answer(choices, Usage(4, 9, 2), "fp"), strict=True)
    assert not answer.model_extra
    assert (answer.object, answer.model, answer.system_fingerprint) == (
        "text_completion",
        SERVED.name,
        "fp",
    )
    assert [(c.index, c.text, c.finish_reason, c.logprobs) for c in answer.choices] == [
        (0, "one", "stop", None),
        (1, "two", "length", None),
    ]
    assert answer.usage is not None
    assert answer.usage.total_tokens == 13
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2

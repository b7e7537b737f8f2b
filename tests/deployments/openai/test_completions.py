"""Completions: four forms of prompt, one choice for each."""

from dataclasses import replace
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


def test_of_a_prompts_choices_only_the_first_has_it_scored() -> None:
    call = completion_call({"prompt": ["a", "b"], "n": 3, "echo": True, "logprobs": 2})
    assert [job.params.prompt_logprobs for job in call.jobs] == [2, None, None] * 2
    assert {job.params.logprobs for job in call.jobs} == {2}


@pytest.mark.parametrize(
    ("fields", "entries"),
    [
        ({"prompt": [[7] * 1000] * 10, "logprobs": 19}, 200_000),
        ({"prompt": [7] * 2000, "n": 5, "logprobs": 19}, 200_000),
        ({"prompt": [7] * 2000, "n": 100, "logprobs": 0}, 200_000),
    ],
)
def test_log_probabilities_of_prompts_are_bounded(fields: dict[str, Any], entries: int) -> None:
    """They froze the gateway while it spelt them: seconds for one request."""
    served = replace(SERVED, max_model_len=10_000)
    asked = {**fields, "echo": True, "max_tokens": 1}
    assert completion_call(asked, served=served).jobs
    more = {**asked, "logprobs": fields["logprobs"] + 1}
    with pytest.raises(BadRequest) as caught:
        completion_call(more, served=served)
    assert caught.value.param == "logprobs"
    told = entries * (more["logprobs"] + 1) // more["logprobs"]
    assert f"'logprobs': {more['logprobs']}" in caught.value.message
    assert str(told) in caught.value.message
    assert "at most 200000" in caught.value.message
    for fewer in ({"echo": False}, {"logprobs": None}):
        assert completion_call({**more, **fewer}, served=served).jobs

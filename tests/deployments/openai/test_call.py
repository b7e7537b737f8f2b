"""Lengths, vocabularies, seeds and ids: what one request may ask of the model."""

from dataclasses import replace

import pytest
from openai.types import Model

from deployments.openai.call import Usage
from deployments.openai.errors import ApiError, BadRequest, NotFound
from tests.deployments.openai.wire import SERVED, chat_call, completion_call

IDS = list(range(90))


def test_chat_may_use_the_rest_of_the_context() -> None:
    (job,) = chat_call({}).jobs
    assert job.params.max_tokens == SERVED.max_model_len - len(job.prompt)


def test_completions_default_to_16_tokens_or_what_room_there_is() -> None:
    assert completion_call({}).jobs[0].params.max_tokens == 16
    assert completion_call({"prompt": IDS}).jobs[0].params.max_tokens == 10


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [(90, 11), (99, 2), (100, None), (100, 1), (5000, None), (1, 10**30)]
)
def test_too_long_is_refused_not_cut(prompt: int, max_tokens: int | None) -> None:
    with pytest.raises(BadRequest) as caught:
        completion_call({"prompt": [1] * prompt, "max_tokens": max_tokens})
    error = caught.value
    assert error.message.startswith("This model's maximum context length is 100 tokens")
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize(("prompt", "max_tokens"), [(90, 10), (99, 1), (99, None)])
def test_what_just_fits_is_taken(prompt: int, max_tokens: int | None) -> None:
    assert completion_call({"prompt": [1] * prompt, "max_tokens": max_tokens}).jobs


def test_one_prompt_too_long_refuses_all() -> None:
    with pytest.raises(BadRequest):
        completion_call({"prompt": [[1], [1] * 100]})


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
def test_another_model_is_a_404(prepare) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotFound) as caught:
        prepare({"model": "gpt-4"})
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert prepare({"model": "tiny"}) == prepare({}) == prepare({"model": None})


def test_a_missing_seed_is_drawn_for_each_job_and_a_given_one_kept() -> None:
    drawn = {job.params.seed for job in completion_call({"prompt": ["a"] * 5}).jobs}
    assert len(drawn) == 5
    assert None not in drawn
    for seed in (7, 0, -1):
        call = completion_call({"prompt": ["a"] * 5, "seed": seed})
        assert {job.params.seed for job in call.jobs} == {seed}


def test_ids_differ_from_call_to_call() -> None:
    ids = {chat_call({}, seed=seed).id for seed in range(20)}
    assert len(ids) == 20
    assert all(id.startswith("chatcmpl-") for id in ids)
    assert completion_call({}).id.startswith("cmpl-")


def test_priority_comes_from_the_body_or_the_header() -> None:
    assert chat_call({}).priority == 0
    assert chat_call({"priority": 5}).priority == 5
    assert chat_call({"priority": 5}, {"x-tl-priority": "-3"}).priority == -3
    flipped = replace(SERVED, vllm_priority=True)
    assert chat_call({"priority": 5}, served=flipped).priority == -5
    with pytest.raises(ApiError):
        chat_call({"priority": 5}, {"x-tl-priority": "high"})


def test_usage_counts_the_prompts_of_all_jobs() -> None:
    call = completion_call({"prompt": [[1, 2], [3]]})
    assert call.prompt_tokens == 3
    assert Usage(3, 4, 1).body() == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_the_model_list_reads_as_the_sdk_reads_it() -> None:
    listing = SERVED.listing(1_700_000_000)
    assert listing["object"] == "list"
    (card,) = listing["data"]
    assert Model.model_validate(card, strict=True).id == "tiny"
    assert card["max_model_len"] == 100

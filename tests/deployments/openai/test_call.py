"""Lengths, vocabularies, seeds and ids: what one request may ask of the model."""

from dataclasses import replace

import pytest
from openai.types import Model

from deployments.openai.call import Usage
from deployments.openai.errors import BadRequest, NotFound
from tests.deployments.openai.wire import SERVED, chat_call, completion_call

IDS = list(range(90))


def test_chat_may_use_the_rest_of_the_context() -> None:
    (job,) = chat_call({}).jobs
    assert job.params.max_tokens == SERVED.max_model_len - len(job.prompt)


def test_completions_default_to_16_tokens_or_what_room_there_is() -> None:
    assert completion_call({}).jobs[0].params.max_tokens == 16
    assert completion_call({"prompt": IDS}).jobs[0].params.max_tokens == 10


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [
        (90, 11, "max_tokens"),
        (99, 2, "max_tokens"),
        (100, None, "prompt"),
        (100, 1, "prompt"),
        (100, 0, "prompt"),
        (5000, None, "prompt"),
        (1, 2**31 - 1, "max_tokens"),
    ],
)
def test_too_long_is_refused_not_cut_and_names_the_cause(
    prompt: int, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        completion_call({"prompt": [1] * prompt, "max_tokens": max_tokens})
    error = caught.value
    assert error.message.startswith("This model's maximum context length is 100 tokens")
    assert (error.code, error.param) == ("context_length_exceeded", param)


def test_too_much_to_generate_names_the_field_that_asked() -> None:
    with pytest.raises(BadRequest) as caught:
        chat_call({"max_tokens": 1, "max_completion_tokens": 100})
    assert caught.value.param == "max_completion_tokens"


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


@pytest.mark.parametrize("seed", [7, 0, -1, 2**63 - 1])
def test_choices_of_a_seeded_request_differ_and_repeat(seed: int) -> None:
    first, again = (completion_call({"n": 5, "seed": seed}, seed=i).jobs for i in (1, 2))
    seeds = [job.params.seed for job in first]
    assert seeds == [job.params.seed for job in again]
    assert seeds[0] == seed
    assert len(set(seeds)) == 5
    assert all(s is not None and -(2**63) <= s < 2**63 for s in seeds)
    # More choices are the same ones and others.
    more = completion_call({"n": 6, "seed": seed}).jobs
    assert [job.params.seed for job in more[:5]] == seeds


def test_choices_of_a_request_without_a_seed_differ() -> None:
    assert len({job.params.seed for job in chat_call({"n": 5}).jobs}) == 5


def test_choices_of_a_prompt_stand_together_and_the_prompt_counts_once() -> None:
    call = completion_call({"prompt": [[1, 2], [3]], "n": 3})
    assert [job.prompt for job in call.jobs] == [(1, 2)] * 3 + [(3,)] * 3
    assert call.prompt_tokens == 3
    assert chat_call({"n": 4}).prompt_tokens == chat_call({}).prompt_tokens


def test_choices_are_bounded_all_together() -> None:
    served = replace(SERVED, max_prompts=6)
    assert len(completion_call({"prompt": [[1], [2]], "n": 3}, served=served).jobs) == 6
    for fields in ({"prompt": [[1], [2]], "n": 4}, {"n": 7}, {"n": 10**30}):
        with pytest.raises(BadRequest) as caught:
            completion_call(fields, served=served)
        assert caught.value.param == "n"
    with pytest.raises(BadRequest, match="at most 6, not 7"):
        chat_call({"n": 7}, served=served)


def test_choices_share_what_the_client_gave_in_lists() -> None:
    fields = {
        "logit_bias": {"7": 1},
        "stop": ["a", "b"],
        "stop_token_ids": [5],
        "echo": True,
        "logprobs": 1,
    }
    call = completion_call({"prompt": [[1, 2], [3] * 90], "n": 3, "seed": 4, **fields})
    first, *others = (job.params for job in call.jobs)
    for params in others:
        assert params.logit_bias is first.logit_bias
        assert params.stop is first.stop
        assert params.stop_token_ids is first.stop_token_ids
    told = [job.params.prompt_logprobs for job in call.jobs]
    assert told == [1, None, None] * 2
    assert [job.params.max_tokens for job in call.jobs] == [16] * 3 + [10] * 3
    assert [job.params.logprobs for job in call.jobs] == [1] * 6


def test_best_of_is_n_or_refused() -> None:
    assert len(completion_call({"n": 3, "best_of": 3}).jobs) == 3
    assert completion_call({"best_of": 1}) == completion_call({})
    for fields in ({"best_of": 2}, {"n": 2, "best_of": 1}, {"n": 2, "best_of": 3}):
        with pytest.raises(BadRequest, match="'best_of'"):
            completion_call(fields)


def test_nothing_to_generate_is_one_token_that_nobody_sees() -> None:
    (job,) = completion_call({"max_tokens": 0}).jobs
    assert (job.params.max_tokens, job.mute, job.echo) == (1, True, None)
    for word in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(BadRequest):  # as with OpenAI
            chat_call({word: 0})


def test_fewest_tokens_are_at_most_the_tokens_to_generate() -> None:
    assert completion_call({"min_tokens": 16}).jobs[0].params.min_tokens == 16
    for fields in ({"min_tokens": 17}, {"min_tokens": 3, "max_tokens": 2}):
        with pytest.raises(BadRequest) as caught:
            completion_call(fields)
        assert caught.value.param == "min_tokens"


def test_an_echo_is_the_prompts_text() -> None:
    call = completion_call({"prompt": ["hé", "x"], "echo": True, "n": 2})
    assert [job.echo for job in call.jobs] == ["hé", "hé", "x", "x"]
    ids = completion_call({"prompt": [256, *"hé".encode()], "echo": True})
    assert ids.jobs[0].echo == "hé"
    with pytest.raises(BadRequest) as caught:
        completion_call({"prompt": [10**30], "echo": True})
    assert caught.value.param == "prompt"


def test_log_probabilities_are_asked_of_the_engine() -> None:
    (plain,), (some,) = chat_call({}).jobs, chat_call({"logprobs": True}).jobs
    assert (plain.params.logprobs, some.params.logprobs) == (None, 0)
    (many,) = chat_call({"logprobs": True, "top_logprobs": 20}).jobs
    assert (many.params.logprobs, many.params.prompt_logprobs) == (20, None)
    for given, told in ((None, None), (False, None), (0, 0), (20, 20)):
        (job,) = completion_call({"logprobs": given}).jobs
        assert (job.params.logprobs, job.params.prompt_logprobs) == (told, None)
        (job,) = completion_call({"logprobs": given, "echo": True}).jobs
        assert (job.params.logprobs, job.params.prompt_logprobs) == (told, told)


def test_log_probabilities_have_two_spellings() -> None:
    for fields in ({"top_logprobs": 3}, {"logprobs": False, "top_logprobs": 1}):
        with pytest.raises(BadRequest, match="'logprobs': true") as caught:
            chat_call(fields)
        assert caught.value.param == "top_logprobs"
    for wrong in (0, 5, "true"):
        with pytest.raises(BadRequest, match="'logprobs' must be true or false"):
            chat_call({"logprobs": wrong})
    with pytest.raises(BadRequest, match="at most 20"):
        chat_call({"logprobs": True, "top_logprobs": 21})
    for wrong in (True, -1, 21, 1.5, "5"):
        with pytest.raises(BadRequest, match="an integer from 0 to 20"):
            completion_call({"logprobs": wrong})


def test_vllm_16529_a_bias_for_what_is_no_token_is_refused_by_name() -> None:
    """It took the engine down, and all other streams with it."""
    for bias in ({"999999": 5}, {"300": 1}, {"AI": 1}, {"1": 101}, {"": 1}, {"9" * 5000: 1}):
        with pytest.raises(BadRequest) as caught:
            chat_call({"logit_bias": bias})
        assert caught.value.param == "logit_bias"
        assert len(caught.value.message) < 200
    (job,) = chat_call({"logit_bias": {"299": -100, "0": 1}}).jobs
    assert job.params.logit_bias == ((299, -100.0), (0, 1.0))


def test_ids_differ_from_call_to_call() -> None:
    ids = {chat_call({}, seed=seed).id for seed in range(20)}
    assert len(ids) == 20
    assert all(id.startswith("chatcmpl-") for id in ids)
    assert completion_call({}).id.startswith("cmpl-")


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

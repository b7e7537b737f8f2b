import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from engine.request import (
    AdmitError,
    EmptyPrompt,
    FinishReason,
    InvalidParam,
    NeverFits,
    PromptTooLong,
    QueueFull,
    Request,
    SamplingParams,
)
from engine.submission import Submission


@pytest.mark.parametrize(
    ("error", "fields", "words"),
    [
        (QueueFull(7, 8), {"waiting": 7, "limit": 8}, "7 requests wait"),
        (EmptyPrompt(), {}, "no tokens"),
        (PromptTooLong(40, 32), {"tokens": 40, "limit": 32}, "context of 32"),
        (NeverFits(8, 6), {"blocks": 8, "total": 6}, "8 blocks"),
        (
            InvalidParam("top_p", 2, "a number from 0 to 1"),
            {"name": "top_p", "value": 2, "limit": "a number from 0 to 1"},
            "top_p must be a number from 0 to 1, not 2",
        ),
    ],
)
def test_errors_keep_their_fields_between_processes(
    error: Exception, fields: dict[str, object], words: str
) -> None:
    """Fault: an exception arrives from another process without fields, or not at all."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert {name: getattr(again, name) for name in fields} == fields
    assert str(again) == str(error)
    assert words in str(again)


def test_one_except_catches_every_refusal() -> None:
    """Fault: a kind of refusal escapes a caller that handles AdmitError."""
    for kind in (QueueFull, EmptyPrompt, PromptTooLong, NeverFits):
        assert issubclass(kind, AdmitError)
    assert not issubclass(InvalidParam, AdmitError)
    assert issubclass(InvalidParam, ValueError)


def test_finish_reasons_are_the_words_of_the_api() -> None:
    """Fault: a reason reaches the client as 'FinishReason.STOP'."""
    assert [f"{reason}" for reason in FinishReason] == ["stop", "length"]


def test_requests_do_not_share_their_generated_tokens() -> None:
    """Fault: a mutable default lets one request see another's tokens."""
    first, second = Request([1], 1), Request([2], 1)
    first.generated.append(9)
    assert second.generated == []
    assert (second.priority, second.arrival) == (0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", "warm"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.0),
        ("min_p", 1.5),
        ("presence_penalty", -2.5),
        ("frequency_penalty", 2.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", 1.5),
        ("stop", ("",)),
        ("stop", "END"),
        ("stop", None),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", 3),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("min_tokens", True),
        ("logit_bias", 5),
        ("logit_bias", "5"),
        ("logit_bias", (5,)),
        ("logit_bias", ((5, 1.0, 2.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", (("5", 1.0),)),
        ("logit_bias", ((5, 100.5),)),
        ("logit_bias", ((5, float("nan")),)),
        ("logit_bias", ((5, True),)),
        ("logit_bias", ((5, 1.0), (5, 2.0))),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", 1.0),
        ("grammar", ""),
        ("grammar", {"type": "object"}),
        pytest.param("temperature", 10**400, id="temperature-beyond-float"),
        pytest.param("repetition_penalty", 10**400, id="repetition_penalty-beyond-float"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    """Fault: nonsense reaches the sampler and fails a whole batch, or is ignored."""
    with pytest.raises(InvalidParam) as refused:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert refused.value.name == name
    assert refused.value.value is value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("min_p", 0),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("repetition_penalty", 0.01),
        ("seed", -1),
        ("stop", ("\n", "END")),
        ("stop_token_ids", (0, 2)),
        ("min_tokens", 0),
        ("min_tokens", 16),
        ("logit_bias", ((0, -100.0), (7, 100.0))),
        ("logprobs", 0),
        ("logprobs", 20),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 20),
        ("grammar", "{}"),
    ],
)
def test_the_edges_of_every_range_are_accepted(name: str, value: object) -> None:
    """Fault: an off-by-one in a range refuses what the API allows."""
    params = SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert getattr(params, name) == value


def test_sampling_params_are_plain_frozen_values() -> None:
    """Fault: two requests share parameters and one of them changes them."""
    params = SamplingParams(top_k=-1, stop=["a"], stop_token_ids=[3])  # type: ignore[arg-type]
    assert params.top_k == 0
    assert (params.stop, params.stop_token_ids) == (("a",), (3,))
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(params) == hash(SamplingParams(stop=("a",), stop_token_ids=(3,)))
    with pytest.raises(FrozenInstanceError):
        params.max_tokens = 3  # type: ignore[misc]


@pytest.mark.parametrize("given", [{5: 1, 6: -2.5}, [[5, 1], [6, -2.5]], ((5, 1), (6, -2.5))])
def test_a_bias_is_kept_as_pairs_of_a_token_and_a_float(given: object) -> None:
    """Fault: a dictionary makes parameters that cannot be hashed, or is read as its keys."""
    params = SamplingParams(logit_bias=given)  # type: ignore[arg-type]
    assert params.logit_bias == ((5, 1.0), (6, -2.5))
    assert all(type(bias) is float for _, bias in params.logit_bias)
    assert hash(pickle.loads(pickle.dumps(params))) == hash(params)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("prompt", {"prompt": (5, 90)}),
        ("generated", {"generated": (-1,)}),
        ("stop_token_ids", {"params": SamplingParams(stop_token_ids=(2, 90))}),
        ("logit_bias", {"params": SamplingParams(logit_bias=((90, 1.0),))}),
    ],
)
def test_a_token_outside_the_vocabulary_is_refused_wherever_it_is(
    name: str, fields: dict[str, Any]
) -> None:
    """vllm#16529: an index out of range in one request's bias ends everybody's step."""
    submission = Submission("a", **{"prompt": (5,), "params": SamplingParams(), **fields})
    if name != "generated":
        submission.check_ids(91)
    with pytest.raises(InvalidParam, match=f"{name} must be token ids from 0 to 89, not "):
        submission.check_ids(90)

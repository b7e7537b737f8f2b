import pickle
from dataclasses import FrozenInstanceError

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

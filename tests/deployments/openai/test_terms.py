"""How a client wants to be served: priorities, tiers and time limits."""

from dataclasses import replace
from typing import Any

import pytest

from deployments.openai.errors import BadRequest
from deployments.openai.terms import Limits, Terms
from tests.deployments.openai.wire import SERVED, chat_call, completion_call

BOUNDED = replace(SERVED, priorities=(-10, 10), tiers={"priority": 7, "flex": -7})


def terms(fields: dict[str, Any], headers: dict[str, str] | None = None, **served: Any) -> Terms:
    return chat_call(fields, headers, replace(BOUNDED, **served)).terms


# ---- priorities ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "priority"), [("7", 7), ("-7", -7), ("+7", 7), (" 7 ", 7), ("007", 7)]
)
def test_the_priority_header_wins(header: str, priority: int) -> None:
    for vllm_sign in (False, True):
        assert (
            terms({"priority": 3}, {"x-tl-priority": header}, vllm_priority=vllm_sign).priority
            == priority
        )


@pytest.mark.parametrize(
    "header",
    [
        "",
        "abc",
        "1.5",
        "1e3",
        "true",
        "1 2",
        "1,2",
        "--1",
        "+-1",
        "-+1",
        "1_0",
        "٣",
        "9" * 5000,
        "11",
        "-11",
    ],
)
def test_a_priority_header_that_is_no_integer_in_range_is_a_400(header: str) -> None:
    with pytest.raises(BadRequest) as caught:
        terms({"priority": 3}, {"x-tl-priority": header})
    assert caught.value.param == "X-TL-Priority"
    assert len(caught.value.message) < 200


def test_the_setting_flips_the_sign_of_the_body() -> None:
    assert terms({"priority": 3}).priority == 3
    assert terms({"priority": 3}, vllm_priority=True).priority == -3
    assert terms({}, vllm_priority=True).priority == 0


@pytest.mark.parametrize("priority", [11, -11, 10**4000])
def test_a_priority_beyond_the_bound_is_a_400(priority: int) -> None:
    with pytest.raises(BadRequest, match="from -10 to 10"):
        terms({"priority": priority})


def test_a_range_of_ones_own_is_named_with_the_value() -> None:
    """A tenant may have less than the server allows, on one side only."""
    low = {"priorities": (-10, 2)}
    assert terms({"priority": 2}, **low).priority == 2
    with pytest.raises(BadRequest, match="'priority' must be from -10 to 2, not 3"):
        terms({"priority": 3}, **low)
    # In the sign that the client uses.
    assert terms({"priority": -2}, **low, vllm_priority=True).priority == 2
    with pytest.raises(BadRequest, match="'priority' must be from -2 to 10, not -3"):
        terms({"priority": -3}, **low, vllm_priority=True)


@pytest.mark.parametrize(("range", "priority"), [((-10, -5), -5), ((3, 10), 3), ((-10, 10), 0)])
def test_who_asks_for_nothing_gets_the_nearest_to_normal(
    range: tuple[int, int], priority: int
) -> None:
    assert terms({}, priorities=range).priority == priority
    assert terms({"service_tier": "auto"}, priorities=range).priority == priority


# ---- tiers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "used", "priority"),
    [
        ("auto", "default", 0),
        ("default", "default", 0),
        ("priority", "priority", 7),
        ("flex", "flex", -7),
    ],
)
def test_a_tier_is_a_priority_and_is_echoed(tier: str, used: str, priority: int) -> None:
    found = terms({"service_tier": tier})
    assert (found.service_tier, found.priority) == (used, priority)
    # vLLM's sign is about numbers, not about names.
    assert terms({"service_tier": tier}, vllm_priority=True).priority == priority


def test_a_number_wins_over_the_tier() -> None:
    assert terms({"service_tier": "flex", "priority": 3}).priority == 3
    assert terms({"service_tier": "flex"}, {"x-tl-priority": "4"}).priority == 4
    assert terms({"service_tier": "flex", "priority": 3}).service_tier == "flex"


@pytest.mark.parametrize("tier", ["scale", "", "Priority", "gold"])
def test_an_unknown_tier_is_a_400(tier: str) -> None:
    with pytest.raises(BadRequest, match="must be one of auto, default, priority, flex") as caught:
        terms({"service_tier": tier, "priority": 1})
    assert caught.value.param == "service_tier"


def test_a_tier_that_is_not_configured_is_a_400() -> None:
    with pytest.raises(BadRequest, match="must be one of auto, default, not 'flex'"):
        terms({"service_tier": "flex"}, tiers={})


def test_a_tier_beyond_the_keys_priorities_is_a_400() -> None:
    with pytest.raises(BadRequest, match="has priority 7, which must be from -10 to 2") as caught:
        terms({"service_tier": "priority"}, priorities=(-10, 2))
    assert caught.value.param == "service_tier"


# ---- time limits --------------------------------------------------------------------------


def test_time_limits_are_milliseconds_and_the_header_wins() -> None:
    assert terms({}).limits == Limits(None, None)
    body = {"timeout_ms": 1500, "first_token_timeout_ms": 250}
    assert terms(body).limits == Limits(first_token_s=0.25, end_s=1.5)
    headers = {"x-request-timeout-ms": "10", "x-first-token-timeout-ms": " 2147483647 "}
    assert terms(body, headers).limits == Limits(2147483.647, 0.01)
    assert completion_call(body, headers).terms.limits == terms(body, headers).limits


@pytest.mark.parametrize("name", ["X-Request-Timeout-Ms", "X-First-Token-Timeout-Ms"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "", "soon", "2147483648", "9" * 5000])
def test_a_wrong_time_limit_is_a_400_that_names_it(name: str, value: str) -> None:
    with pytest.raises(BadRequest) as caught:
        terms({}, {name.lower(): value})
    assert caught.value.param == name


def test_before_the_first_token_the_shorter_limit_counts() -> None:
    assert Limits().first() == (None, "end")
    assert Limits(end_s=2).first() == (2, "end")
    assert Limits(first_token_s=1).first() == (1, "first token")
    assert Limits(first_token_s=1, end_s=2).first() == (1, "first token")
    assert Limits(first_token_s=2, end_s=1).first() == (1, "end")

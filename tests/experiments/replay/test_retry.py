"""When a request is sent again, against the openai SDK's own decision."""

import email.utils
import random
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from multidict import CIMultiDict

from experiments.replay.retry import Retry


@pytest.fixture(scope="module")
def sdk() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1") as sdk:
        yield sdk


def wait(status: int | None, tried: int = 1, times: int = 2, **headers: str) -> float | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Retry(times, random.Random(1)).wait_s(tried, status, CIMultiDict(named))


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-should-retry": "true"},
        {"x-should-retry": "false"},
        {"retry-after": "3"},
        {"retry-after": "3", "retry-after-ms": "1500"},
        {"retry-after": "121"},
        {"retry-after": "nonsense"},
        {"retry-after": "0"},
        {"retry-after": "inf"},
    ],
)
def test_it_decides_as_the_openai_sdk(
    sdk: openai.OpenAI, status: int, headers: dict[str, str]
) -> None:
    answer: Any = type("Answer", (), {"status_code": status, "headers": CIMultiDict(headers)})
    again = sdk._should_retry(answer)
    told = sdk._parse_retry_after_header(answer.headers)
    mine = Retry(2, random.Random(1)).wait_s(1, status, CIMultiDict(headers))
    assert (mine is not None) == again
    if mine is not None:
        assert mine == told if told in (3.0, 1.5) else 0.375 <= mine <= 0.5


def test_it_is_sent_again_so_many_times_and_no_more() -> None:
    assert wait(429, tried=2) is not None
    assert wait(429, tried=3) is None
    assert wait(429, tried=1, times=0) is None


def test_what_never_reached_a_server_is_sent_again() -> None:
    assert wait(None) is not None


def test_waits_grow_up_to_a_bound() -> None:
    waits = [wait(503, tried, times=5000) for tried in (1, 2, 3, 6, 5000)]
    for one, most in zip(waits, (0.5, 1.0, 2.0, 8.0, 8.0), strict=True):
        assert one is not None
        assert 0.75 * most <= one <= most


def test_a_date_is_read() -> None:
    told = wait(429, retry_after=email.utils.formatdate(time.time() + 60, usegmt=True))
    assert told is not None
    assert 50 < told <= 60

"""Bodies and headers that are wrong before any field is looked at."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.openai.body import check_key, read_limited, read_object, read_priority
from deployments.openai.errors import ApiError, BadRequest, TooLarge, Unauthorized


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        '{"a": 1}'.encode("utf-16"),
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[]",
        b"null",
        b'"text"',
        b"5",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_object(body)


def test_an_escaped_surrogate_pair_is_one_character() -> None:
    assert read_object(b'{"a": "\\ud83c\\udf0a"}') == {"a": "\U0001f30a"}


def test_nulls_are_dropped_at_the_top_only() -> None:
    assert read_object(b'{"a": null, "b": {"c": null}}') == {"b": {"c": None}}


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_anything_but_an_object_or_a_400(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(read_object(body), dict)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_within_the_limit_is_read_whole() -> None:
    assert await read_limited(pieces(b"ab", b"cd"), {"content-length": "4"}, 4) == b"abcd"


@pytest.mark.parametrize("announced", ["5", "1" * 40])
async def test_a_body_announced_as_too_large_is_refused_unread(announced: str) -> None:
    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    with pytest.raises(TooLarge):
        await read_limited(unread(), {"content-length": announced}, 4)


@pytest.mark.parametrize("announced", ["1", "", "-1", "x", "\N{SUPERSCRIPT TWO}"])
async def test_a_body_larger_than_announced_is_refused(announced: str) -> None:
    with pytest.raises(TooLarge) as caught:
        await read_limited(pieces(b"ab", b"cde"), {"content-length": announced}, 4)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("header", "priority"), [("7", 7), ("-7", -7), ("+7", 7), (" 7 ", 7), ("007", 7)]
)
def test_the_priority_header_wins(header: str, priority: int) -> None:
    for vllm_sign in (False, True):
        assert read_priority(3, {"x-tl-priority": header}, 10, vllm_sign) == priority


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
        read_priority(3, {"x-tl-priority": header}, 10, False)
    assert caught.value.param == "X-TL-Priority"
    assert len(caught.value.message) < 200


def test_the_setting_flips_the_sign_of_the_body() -> None:
    assert read_priority(3, {}, 10, False) == 3
    assert read_priority(3, {}, 10, True) == -3
    assert read_priority(None, {}, 10, True) == 0


@pytest.mark.parametrize("priority", [11, -11, 10**4000])
def test_a_priority_beyond_the_bound_is_a_400(priority: int) -> None:
    with pytest.raises(BadRequest, match="from -10 to 10"):
        read_priority(priority, {}, 10, False)


@pytest.mark.parametrize("header", ["Bearer key", "bearer key", "Bearer  key "])
def test_the_right_key_is_let_in(header: str) -> None:
    check_key({"authorization": header}, "key")


@pytest.mark.parametrize(
    "header", ["", "key", "Bearer", "Bearer ", "Bearer keys", "Bearer ke", "Basic key", "Bearer ké"]
)
def test_another_key_is_a_401(header: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        check_key({"authorization": header}, "key")
    assert caught.value.status == 401
    assert caught.value.headers() == {"WWW-Authenticate": "Bearer"}


def test_a_missing_header_is_a_401_and_without_a_key_all_are_let_in() -> None:
    with pytest.raises(ApiError):
        check_key({}, "key")
    check_key({}, None)

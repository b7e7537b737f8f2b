"""Bodies and headers that are wrong before any field is looked at."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.openai.body import read_limited, read_object
from deployments.openai.errors import BadRequest, TooLarge, WrongEncoding


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


DIGITS = b"1" * 5000


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a": "\xff"}', "not valid JSON: it is not UTF-8, from byte 7 on."),
        ('{"a": 1}'.encode("utf-16"), "not valid JSON: it is not UTF-8, from byte 0 on."),
        (b'{"a": "\\ud800"}', "not valid JSON: it has half of a surrogate pair."),
        (b'{"\\udfff": 1}', "not valid JSON: it has half of a surrogate pair."),
        (b"[" * 200_000, "not valid JSON: it is nested too deeply."),
        (b'{"a":' * 200_000, "not valid JSON: it is nested too deeply."),
        (
            b'{"a": ' + DIGITS + b"}",
            "not valid JSON: it has an integer with more than 4300 digits.",
        ),
        (
            b'{"a": -' + DIGITS + b"}",
            "not valid JSON: it has an integer with more than 4300 digits.",
        ),
        (b'{"a": NaN}', "not valid JSON: NaN is not a JSON number."),
        (b'{"a" 1}', "not valid JSON: Expecting ':' delimiter: line 1 column 6 (char 5)."),
        (b"", "not valid JSON: Expecting value: line 1 column 1 (char 0)."),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_wrong_with_a_body_is_said(body: bytes, reason: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_object(body)
    assert (caught.value.message, caught.value.code) == (f"The body is {reason}", "invalid_json")


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


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "gzip, identity", "x" * 5000])
async def test_a_compressed_body_is_named_not_called_invalid_json(encoding: str) -> None:
    with pytest.raises(WrongEncoding, match="uncompressed") as caught:
        await read_limited(pieces(b"{}"), {"content-encoding": encoding}, 100)
    assert (caught.value.status, caught.value.code) == (415, "unsupported_encoding")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("encoding", ["identity", "", " Identity "])
async def test_a_plain_body_may_say_so(encoding: str) -> None:
    assert await read_limited(pieces(b"{}"), {"content-encoding": encoding}, 100) == b"{}"

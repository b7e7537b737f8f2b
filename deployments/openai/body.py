"""The body and headers of a request, before any of its fields has a meaning."""

import json
import sys
from collections.abc import AsyncIterable, Mapping
from typing import Any

from deployments.openai.errors import BadRequest, TooLarge, WrongEncoding
from deployments.validation import kind_of, show


async def read_limited(
    chunks: AsyncIterable[bytes], headers: Mapping[str, str], limit: int
) -> bytes:
    """Read a body of at most ``limit`` bytes.

    What the client announces is only good for refusing early; what arrives is counted.

    Raises:
        TooLarge: the body is, or says it is, larger.
        WrongEncoding: it is compressed.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise WrongEncoding(
            f"A body in the encoding {show(encoding)} is not accepted; send it uncompressed.",
            code="unsupported_encoding",
        )
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object and drop its top-level nulls: a null means "not given".

    Raises:
        BadRequest: not JSON (NaN and Infinity are not JSON), not an object, or text with
            half a surrogate pair, which no tokenizer and no answer could hold.
    """
    try:
        # Decoded here, since json would also take UTF-16 for JSON.
        value = json.loads(body.decode(), parse_constant=_no_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = _reason(error)
        raise BadRequest(f"The body is not valid JSON: {reason}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object, not {kind_of(value)}.")
    return without_nulls(value)


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without the keys whose value is None."""
    return {key: item for key, item in value.items() if item is not None}


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.", code="body_too_large")


class _NoNumber(ValueError):
    """A constant that Python takes for a number and JSON does not."""


def _no_constant(name: str) -> None:
    raise _NoNumber(f"{name} is not a JSON number")


def _reason(error: ValueError | RecursionError) -> str:
    """Say what is wrong with a body, and nothing of how it is read."""
    match error:
        case RecursionError():
            return "it is nested too deeply"
        case UnicodeDecodeError():
            return f"it is not UTF-8, from byte {error.start} on"
        case UnicodeEncodeError():
            return "it has half of a surrogate pair"
        case json.JSONDecodeError() | _NoNumber():
            return str(error)
        case _:  # what is left of what json raises
            return f"it has an integer with more than {sys.get_int_max_str_digits()} digits"

"""The body and headers of a request, before any of its fields has a meaning."""

import json
import re
from collections.abc import AsyncIterable, Mapping
from hmac import compare_digest
from typing import Any

from deployments.openai.errors import BadRequest, TooLarge, Unauthorized, unsupported
from deployments.validation import kind_of, show

PRIORITY_HEADER = "x-tl-priority"
TIMEOUT_HEADER = "x-request-timeout-ms"

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


async def read_limited(
    chunks: AsyncIterable[bytes], headers: Mapping[str, str], limit: int
) -> bytes:
    """Read a body of at most ``limit`` bytes.

    What the client announces is only good for refusing early; what arrives is counted.

    Raises:
        TooLarge: the body is, or says it is, larger.
    """
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
        reason = "" if isinstance(error, UnicodeError | RecursionError) else f": {error}"
        raise BadRequest(f"The body is not valid JSON{reason}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object, not {kind_of(value)}.")
    return without_nulls(value)


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without the keys whose value is None."""
    return {key: item for key, item in value.items() if item is not None}


def read_priority(body: int | None, headers: Mapping[str, str], limit: int, vllm_sign: bool) -> int:
    """Return a request's priority, higher being more urgent.

    Args:
        body: the body's ``priority``, already known to be an integer.
        headers: looked up in lower case; ``X-TL-Priority`` wins over the body.
        limit: the largest magnitude that is accepted.
        vllm_sign: the body counts as in vLLM, lower being more urgent. The header never
            does: no other server has it.

    Raises:
        BadRequest: not an integer, or out of range.
    """
    header = headers.get(PRIORITY_HEADER)
    name = "priority" if header is None else "X-TL-Priority"
    priority = (body or 0) if header is None else _integer(header, name)
    if abs(priority) > limit:
        raise BadRequest(f"'{name}' must be from {-limit} to {limit}, not {show(priority)}.", name)
    return -priority if vllm_sign and header is None else priority


def refuse_unbuilt_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that ask for something that is not built.

    Raises:
        BadRequest: the request carries one.
    """
    if TIMEOUT_HEADER in headers:
        raise unsupported("X-Request-Timeout-Ms", "leave the header out")


def check_key(headers: Mapping[str, str], key: str | None) -> None:
    """Let only those in who know the key; without a key everyone is let in.

    Raises:
        Unauthorized: the Authorization header carries no key or another one.
    """
    if key is None:
        return
    scheme, _, given = headers.get("authorization", "").partition(" ")
    # compare_digest takes as long for a wrong key as for the right one; as bytes, since
    # as text it refuses characters outside ASCII.
    known = compare_digest(given.strip().encode(), key.encode())
    if scheme.lower() != "bearer" or not known:
        raise Unauthorized(
            "Give a valid API key in the header 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
        )


def _integer(text: str, name: str) -> int:
    if not _INTEGER.fullmatch(text.strip()):
        raise BadRequest(f"'{name}' must be an integer, not {show(text)}.", name)
    return int(text)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.", code="body_too_large")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")

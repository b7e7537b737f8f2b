"""Errors as a client sees them: a status, headers, and one envelope for all.

``{"error": {"message", "type", "param", "code"}}``, whatever went wrong and wherever:
in the request, in the router, in a replica, or in FastAPI itself.
"""

import math
import re
from typing import Any, ClassVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.validation import explain, show
from engine.request import InvalidParam

# Fields that hold what a person wrote: errors are logged, so they never repeat it.
PRIVATE = frozenset({"messages", "prompt", "stop"})
# How llguidance says that a limit on its work is met.
_TOO_MUCH_WORK = re.compile(r"too (many|big|complex)\b|\bfuel\b|\bmax is [0-9]", re.IGNORECASE)


class ApiError(Exception):
    """An answer that is not a success.

    Attributes:
        message: a sentence for a person.
        param: the request's field that is wrong, as a dotted path, if one is.
        code: a word for programs, if there is one.
        retry_after: seconds after which to try again, if that may help.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, param, code, retry_after)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message

    def envelope(self) -> dict[str, Any]:
        """Return the JSON body."""
        return envelope(self.message, self.type, self.param, self.code)

    def headers(self) -> dict[str, str]:
        """Return the headers that go with the body."""
        if self.retry_after is None:
            return {}
        # Whole seconds by the standard. The SDK prefers the milliseconds and waits for
        # exactly that long, so they keep the spread that rounding up would take away.
        seconds = max(1.0, self.retry_after)
        return {
            "Retry-After": str(math.ceil(seconds)),
            "retry-after-ms": str(math.ceil(seconds * 1000)),
        }

    def response(self) -> Response:
        """Return the whole answer."""
        return JSONResponse(self.envelope(), self.status, headers=self.headers())


class BadRequest(ApiError):
    """400: the request itself is wrong; the same again will fail again."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    """401: no key, or not one that is known here."""

    status = 401
    type = "invalid_request_error"

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class NotFound(ApiError):
    """404: no such model or path."""

    status = 404
    type = "invalid_request_error"


class TooLarge(ApiError):
    """413: the body is larger than is accepted."""

    status = 413
    type = "invalid_request_error"


class WrongEncoding(ApiError):
    """415: the body is compressed."""

    status = 415
    type = "invalid_request_error"


class Full(ApiError):
    """429: all queues are full; try again later."""

    status = 429
    type = "rate_limit_error"


class InternalError(ApiError):
    """500: a bug here."""


class Unavailable(ApiError):
    """503: no replica is serving."""

    status = 503
    type = "service_unavailable_error"


class OutOfTime(ApiError):
    """504: the time that the client gave is over."""

    status = 504
    type = "timeout_error"

    def headers(self) -> dict[str, str]:
        # The SDK would send it again by itself, to no one's use.
        return {"x-should-retry": "false"}


def envelope(message: str, type: str, param: str | None, code: str | None) -> dict[str, Any]:
    """Return the body of every answer that is not a success."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def unsupported(param: str, instead: str = "") -> BadRequest:
    """Refuse a field that clients know but that is not built; ``instead`` says what works."""
    hint = f"; {instead}" if instead else ""
    return BadRequest(f"'{param}' is not supported yet{hint}.", param, "unsupported_parameter")


def too_long(
    tokens: int,
    limit: int,
    generate: int | None = None,
    param: str | None = None,
    asked_by: str | None = None,
) -> BadRequest:
    """Refuse what does not fit the context.

    Args:
        tokens: tokens of the prompt.
        limit: the model's context, in tokens.
        generate: tokens that the client asked to generate, if it did.
        param: the field that holds the prompt.
        asked_by: the field that says how many to generate.
    """
    if generate is None or tokens >= limit:
        needs = f"the prompt has {tokens}, which leaves no room for an answer"
    else:
        needs = f"{tokens + generate} are needed: {tokens} of prompt and {generate} to generate"
        param = asked_by or param
    return BadRequest(
        f"This model's maximum context length is {limit} tokens, but {needs}.",
        param,
        "context_length_exceeded",
    )


def never_fits(blocks: int, total: int) -> BadRequest:
    """Refuse what is larger than the memory of any replica, in blocks of the KV cache."""
    return BadRequest(
        f"The request may need {blocks} blocks of memory, but a replica has only {total}. "
        "Shorten the prompt or lower max_tokens.",
        code="request_too_large",
    )


def grammar_refused(message: str, form: str | None) -> BadRequest:
    """A replica cannot enforce the form of the answer; ``message`` begins with "grammar".

    Args:
        message: says why.
        form: the field in which the client asked for it.
    """
    if _TOO_MUCH_WORK.search(message):
        return grammar_too_complex(form)
    field = form or "grammar"
    return BadRequest(f"'{field}'{message.removeprefix('grammar')}.", field)


def grammar_too_complex(form: str | None) -> BadRequest:
    """The form of the answer, asked for in this field, takes too much work somewhere."""
    return BadRequest(
        "The form of the answer is too complex to be enforced to its end. Optional properties of "
        "one object, and repetitions within repetitions, cost most.",
        form,
        "grammar_too_complex",
    )


def too_many_choices(asked: int, limit: int) -> BadRequest:
    """Refuse what could not be let in whole if there were no other requests."""
    return BadRequest(
        f"The request has {asked} choices, but the server has room for {limit} together. "
        "Lower n or send fewer prompts.",
        code="request_too_large",
    )


def queue_full(retry_after: float) -> Full:
    """Push back: everything is full, for about this many seconds."""
    return Full(
        "The server is full: all queues have reached their limit. Try again later.",
        code="queue_full",
        retry_after=retry_after,
    )


def tenant_busy(limit: int, retry_after: float) -> Full:
    """Push back: the tenant has as many requests under way as it may."""
    return Full(
        f"This key's tenant may have {limit} requests under way at a time, and has. "
        "Try again when one has ended.",
        code="tenant_requests_exceeded",
        retry_after=retry_after,
    )


def tenant_rate(limit: int, retry_after: float) -> Full:
    """Push back: the tenant has used its tokens for now."""
    return Full(
        f"This key's tenant may use {limit} tokens a minute, and has. Try again later.",
        code="tenant_tokens_exceeded",
        retry_after=retry_after,
    )


def out_of_time(what: str) -> OutOfTime:
    """The time limit that the client set ran out; ``what`` is "first token" or "end"."""
    return OutOfTime(
        f"The request's time limit ran out before its {what}.", code="deadline_exceeded"
    )


def no_replica(retry_after: float) -> Unavailable:
    """No replica is serving now; one may be in this many seconds."""
    return Unavailable(
        "No replica of the model is serving at the moment. Try again later.",
        code="no_replica",
        retry_after=retry_after,
    )


def unknown_model(name: str) -> NotFound:
    """The client asked for a model that is not served here."""
    return NotFound(f"The model {show(name)} does not exist.", "model", "model_not_found")


def internal() -> InternalError:
    """A bug: say so, and nothing of what is inside."""
    return InternalError("The server had an internal error.", code="internal_error")


def invalid(error: ValidationError | InvalidParam) -> BadRequest:
    """Turn a value out of its range into an answer that names it."""
    if isinstance(error, InvalidParam):
        return BadRequest(f"'{error.name}' must be {error.limit}.", error.name)
    problem = explain(error, PRIVATE)
    return BadRequest(f"{problem.message}.", problem.field or None)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error that leaves ``app`` wear the envelope."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_fastapi_validation)
    app.add_exception_handler(HTTPException, _on_http_exception)
    # Starlette sends this answer and then raises the bug again, so that it is logged.
    app.add_exception_handler(Exception, _on_bug)


async def _on_api_error(_: Request, error: Exception) -> Response:
    return error.response() if isinstance(error, ApiError) else internal().response()


async def _on_fastapi_validation(_: Request, error: Exception) -> Response:
    details = error.errors() if isinstance(error, RequestValidationError) else []
    if not details:
        return BadRequest("The request is not valid.").response()
    # FastAPI's path starts with where it looked: "query", "path", "body".
    field = ".".join(str(part) for part in details[0]["loc"][1:])
    return BadRequest(f"'{field}': {details[0]['msg']}.", field or None).response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return internal().response()
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    code: str | None = None
    message = str(error.detail)
    if error.status_code == 404:
        message, code = f"There is no {show(request.url.path)} on this server.", "not_found"
    elif error.status_code == 405:
        path = show(request.url.path)
        message, code = f"{path} does not take {request.method}.", "method_not_allowed"
    body = envelope(message, kind, None, code)
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _on_bug(_: Request, error: Exception) -> Response:
    return internal().response()

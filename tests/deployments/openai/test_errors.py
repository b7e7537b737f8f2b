"""Whatever goes wrong wears the envelope."""

import copy
import json
import pickle

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from deployments.openai import errors
from deployments.openai.errors import ApiError
from engine.request import InvalidParam

ALL: list[tuple[ApiError, int, str | None]] = [
    (errors.unsupported("n", "leave it out"), 400, "unsupported_parameter"),
    (errors.too_long(100, 100), 400, "context_length_exceeded"),
    (errors.never_fits(8, 6), 400, "request_too_large"),
    (errors.invalid(InvalidParam("top_p", 5, "a number from 0 to 1")), 400, None),
    (errors.Unauthorized("who?"), 401, None),
    (errors.unknown_model("gpt-4"), 404, "model_not_found"),
    (errors.TooLarge("big"), 413, None),
    (errors.queue_full(2.5), 429, "queue_full"),
    (errors.internal(), 500, "internal_error"),
    (errors.no_replica(3), 503, "no_replica"),
]


@pytest.mark.parametrize(("error", "status", "code"), ALL, ids=lambda value: str(value)[:30])
def test_every_error_has_its_status_and_the_envelope(
    error: ApiError, status: int, code: str | None
) -> None:
    response = error.response()
    assert response.status_code == status
    body = json.loads(bytes(response.body))
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    assert body["error"]["code"] == code
    assert body["error"]["type"]
    assert body["error"]["message"] == str(error)


@pytest.mark.parametrize("error", [error for error, _, _ in ALL], ids=lambda error: str(error)[:30])
def test_errors_keep_their_fields_through_pickling(error: ApiError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert again.envelope() == error.envelope()
        assert again.headers() == error.headers()


@pytest.mark.parametrize(
    ("seconds", "header", "millis"),
    [
        (0, "1", "1000"),
        (-5, "1", "1000"),
        (0.2, "1", "1000"),
        (1, "1", "1000"),
        (1.2, "2", "1200"),
        (59.5, "60", "59500"),
    ],
)
def test_retry_after_is_whole_seconds_from_1_and_keeps_its_spread_in_milliseconds(
    seconds: float, header: str, millis: str
) -> None:
    for error in (errors.queue_full(seconds), errors.no_replica(seconds)):
        assert error.headers() == {"Retry-After": header, "retry-after-ms": millis}


def test_too_long_says_how_much_of_what() -> None:
    assert errors.too_long(90, 100, 11).message == (
        "This model's maximum context length is 100 tokens, "
        "but 101 are needed: 90 of prompt and 11 to generate."
    )
    assert errors.too_long(100, 100).message == (
        "This model's maximum context length is 100 tokens, "
        "but the prompt has 100, which leaves no room for an answer."
    )


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    errors.install_error_handlers(app)

    @app.get("/items/{number}")
    async def item(number: int) -> int:
        return number

    @app.get("/full")
    async def full() -> None:
        raise errors.queue_full(2)

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout")

    @app.get("/bug")
    async def bug() -> None:
        raise RuntimeError("a secret of the inside")

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/items/x", 400, None),
        ("GET", "/v1/responses", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("POST", "/full", 405, "method_not_allowed"),
        ("GET", "/full", 429, "queue_full"),
        ("GET", "/teapot", 418, None),
        ("GET", "/bug", 500, "internal_error"),
    ],
)
def test_no_error_leaves_an_app_without_the_envelope(
    client: TestClient, method: str, path: str, status: int, code: str | None
) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["code"] == code
    assert "secret" not in response.text


def test_fastapis_own_refusal_names_the_field(client: TestClient) -> None:
    assert client.get("/items/x").json()["error"]["param"] == "number"


def test_headers_of_an_error_are_sent(client: TestClient) -> None:
    assert client.get("/full").headers["retry-after"] == "2"
    assert client.post("/full").headers["allow"] == "GET"

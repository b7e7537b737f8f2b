"""Requests made from the server's own OpenAPI document, right ones and wrong ones."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.deployments.house import House, error, open_house

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/version"),
    ("GET", "/load"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


class Served:
    """A house whose event loop runs when it is asked something; Hypothesis is synchronous."""

    def __init__(self, runner: asyncio.Runner, house: House) -> None:
        self._runner = runner
        self._house = house

    def ask(self, **request: Any) -> httpx.Response:
        return self._runner.run(self._house.http.request(**request))


@pytest.fixture(scope="module")
def served(tiny_model_dir: Path) -> Iterator[Served]:
    with asyncio.Runner() as runner:
        opened = open_house(tiny_model_dir)
        house = runner.run(opened.__aenter__())
        house.router.answer = "r"
        house.gateway._intake._tokenizer.chat_template = "> {{ messages[0]['content'] }}"
        yield Served(runner, house)
        runner.run(opened.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def schema(served: Served) -> Any:
    return openapi.from_dict(served.ask(method="GET", url="/openapi.json").json())


def test_all_operations_are_tried(schema: Any) -> None:
    made = [result.ok() for result in schema.get_all_operations()]
    assert [(one.method.upper(), one.path) for one in made] == OPERATIONS


NEEDED = {"messages", "prompt", "tokens"}
MODES = [
    (method, path, mode)
    for method, path in OPERATIONS
    # Where nothing is asked, nothing can be wrong.
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 2 if method == "POST" else 1]
]


@pytest.mark.parametrize(("method", "path", "mode"), MODES)
def test_whatever_is_asked_is_answered_as_the_document_says(
    served: Served, schema: Any, method: str, path: str, mode: GenerationMode
) -> None:
    operation = schema[path][method]
    seen: set[int] = set()

    def send(case: Any) -> None:
        request = case.as_transport_kwargs(base_url="http://test")
        request.pop("cookies", None)
        if isinstance(request.get("data"), bytes):
            request["content"] = request.pop("data")
        answer = served.ask(**request)
        seen.add(answer.status_code)
        if answer.status_code >= 400:
            assert error(answer)["message"]
        if answer.status_code != 504:  # a time limit of a millisecond is one
            case.validate_response(answer, checks=CHECKS)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        send(case)
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            # Of all fields together some contradict each other, mostly.
            case.body = {name: value for name, value in case.body.items() if name in NEEDED}
            send(case)
            if "tokens" not in case.body:
                case.body = {**case.body, "stream": True}
                send(case)

    ask()
    if mode is GenerationMode.POSITIVE:
        assert 200 in seen

"""The OpenAPI document, made from the models that requests are checked against."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from deployments.openai import answers
from deployments.openai.models import MAX_MS, ChatRequest, CompletionRequest
from deployments.openai.served import Served
from deployments.openai.sse import MEDIA_TYPE
from deployments.openai.terms import END_HEADER, FIRST_TOKEN_HEADER, PRIORITY_HEADER
from deployments.openai.tokenize import DetokenizeRequest, TokenizeRequest

_REFERENCE: Final = "#/components/schemas/{model}"
_KEY: Final = "key"


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """One method of one path.

    Attributes:
        summary: what it does.
        body: the model of its request, if it takes one.
        answer: the model of its answer in JSON; None if that is not JSON, or not promised.
        generates: it may stream, and takes the headers that go with a generation.
        locked: it needs a key, where there is one.
        names_model: its path has the model's name.
    """

    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    generates: bool = False
    locked: bool = True
    names_model: bool = False


# Checked where grammars are made, not in the models.
_STRUCTURED: Final[Mapping[str, Any]] = {
    "response_format": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"type": {"enum": ["text", "json_object"]}},
                "required": ["type"],
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "json_schema"},
                    "json_schema": {
                        "type": "object",
                        "properties": {"schema": {"type": "object"}},
                        "required": ["schema"],
                    },
                },
                "required": ["type", "json_schema"],
            },
            {"type": "null"},
        ]
    },
    "structured_outputs": {"type": ["object", "null"]},
    "guided_json": {"type": ["object", "string", "null"]},
    "guided_regex": {"type": ["string", "null"]},
    "guided_choice": {"type": ["array", "null"], "items": {"type": "string"}},
    "guided_grammar": {"type": ["string", "null"]},
}

_ENDPOINTS: Final[Mapping[tuple[str, str], _Endpoint]] = {
    ("post", "/v1/chat/completions"): _Endpoint(
        "Answer a conversation.", ChatRequest, answers.ChatCompletion, generates=True
    ),
    ("post", "/v1/completions"): _Endpoint(
        "Go on from a text.", CompletionRequest, answers.Completion, generates=True
    ),
    ("get", "/v1/models"): _Endpoint("List the model.", answer=answers.ModelList),
    ("get", "/v1/models/{model}"): _Endpoint(
        "Tell of the model.", answer=answers.ModelCard, names_model=True
    ),
    ("post", "/tokenize"): _Endpoint("Tell tokens.", TokenizeRequest, answers.Tokens),
    ("post", "/detokenize"): _Endpoint("Tell text.", DetokenizeRequest, answers.Text),
    ("get", "/version"): _Endpoint("Tell the version.", answer=answers.Version),
    ("get", "/load"): _Endpoint("Tell queue and blocks of each replica."),
    ("get", "/health"): _Endpoint("Say whether a replica makes progress.", locked=False),
    ("get", "/metrics"): _Endpoint("Return the Prometheus page.", locked=False),
}


class Document:
    """The document in bytes, kept as long as the same is served: making it takes 7 ms.

    Args:
        version: of this software.
        locked: clients need a key.
    """

    def __init__(self, version: str, locked: bool) -> None:
        self._version = version
        self._locked = locked
        self._served: Served | None = None
        self._body = b""

    def body(self, served: Served) -> bytes:
        """Return the document of what is served."""
        if served is not self._served:
            made = document(served, self._version, self._locked)
            self._served, self._body = served, json.dumps(made).encode()
        return self._body


def document(served: Served, version: str, locked: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a server.

    Args:
        served: its model and bounds.
        version: of this software.
        locked: clients need a key.
    """
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [(answers.Error, "validation")]
    for endpoint in _ENDPOINTS.values():
        for model in (endpoint.body, endpoint.answer):
            if model is not None:
                models.append((model, "validation"))
    _, schemas = models_json_schema(models, ref_template=_REFERENCE)
    definitions = schemas["$defs"]
    for name in ("ChatRequest", "CompletionRequest"):
        _bound(definitions[name]["properties"], served)
    ids = definitions["DetokenizeRequest"]["properties"]["tokens"]["items"]
    ids |= {"minimum": 0, "maximum": served.vocab_size - 1}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), endpoint in _ENDPOINTS.items():
        paths.setdefault(path, {})[method] = _operation(endpoint, served, locked)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidegate", "version": version},
        "paths": paths,
        "components": {
            "schemas": definitions,
            **({"securitySchemes": {_KEY: bearer}} if locked else {}),
        },
    }


def _operation(endpoint: _Endpoint, served: Served, locked: bool) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done."}
    if endpoint.answer is not None:
        success["content"] = {"application/json": {"schema": _reference(endpoint.answer)}}
    operation: dict[str, Any] = {"summary": endpoint.summary}
    if endpoint.generates:
        # A stream of events, each with a piece of the answer in JSON. This version of OpenAPI
        # cannot say so: readers differ in whether a schema is that of an event or of all.
        success["content"][MEDIA_TYPE] = {}
        operation["parameters"] = _headers(served)
    if endpoint.names_model:
        # Slashes in it may be written as they are, too.
        name = {"type": "string", "enum": [served.name]}
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": name}
        ]
    if endpoint.body is not None:
        content = {"application/json": {"schema": _reference(endpoint.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if endpoint.locked and locked:
        operation["security"] = [{_KEY: []}]
    envelope = {"application/json": {"schema": _reference(answers.Error)}}
    failure = {"description": "The error.", "content": envelope}
    return {**operation, "responses": {"200": success, "4XX": failure, "5XX": failure}}


def _headers(served: Served) -> list[dict[str, Any]]:
    low, high = served.priorities
    bounds = {
        PRIORITY_HEADER: (low, high),
        END_HEADER: (1, MAX_MS),
        FIRST_TOKEN_HEADER: (1, MAX_MS),
    }
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": "integer", "minimum": least, "maximum": most},
        }
        for name, (least, most) in bounds.items()
    ]


def _bound(fields: dict[str, Any], served: Served) -> None:
    """Write into the fields of a generation what depends on the server."""
    fields |= _STRUCTURED
    for name, value in served.defaults.items():
        fields[name]["default"] = value
    low, high = served.priorities
    if served.vllm_priority:
        low, high = -high, -low
    fields["model"] = {"enum": [served.name, None]}
    fields["service_tier"] = {"enum": ["auto", "default", *served.tiers, None]}
    fields["priority"] = {"type": ["integer", "null"], "minimum": low, "maximum": high}
    fields["logit_bias"] |= {"default": {}, "additionalProperties": False}
    fields["n"]["maximum"] = served.max_prompts


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}

"""The OpenAPI document says what the server does."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from deployments.openai.call import Choice, Usage
from deployments.openai.document import Document, document
from deployments.openai.errors import ApiError, internal
from deployments.openai.models import ChatRequest, CompletionRequest
from engine.request import FinishReason
from tests.deployments.openai.test_models import ACCEPTED
from tests.deployments.openai.wire import SERVED, chat_call, completion_call

DOCUMENT = document(replace(SERVED, tiers={"flex": -1}, priorities=(-5, 7)), "1.2.3", True)
REQUIRED: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": [{"role": "user", "content": "hi"}]},
    "CompletionRequest": {"prompt": "hi"},
}


def schema_of(name: str) -> Draft202012Validator:
    return Draft202012Validator({**DOCUMENT, "$ref": f"#/components/schemas/{name}"})


def test_it_is_plain_json_and_every_reference_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT, allow_nan=False)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        Draft202012Validator.check_schema(DOCUMENT["components"]["schemas"][name])


def test_it_is_made_once_for_what_is_served() -> None:
    kept = Document("1.2.3", locked=True)
    first = kept.body(SERVED)
    assert json.loads(first) == document(SERVED, "1.2.3", True)
    assert kept.body(SERVED) is first
    # A replica that holds less than the model's context changes what is served.
    other = replace(SERVED, max_prompts=5)
    assert json.loads(kept.body(other)) == document(other, "1.2.3", True)
    assert kept.body(SERVED) == first


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_it_has_every_field_and_the_servers_bounds(model: Any) -> None:
    fields = DOCUMENT["components"]["schemas"][model.__name__]["properties"]
    assert fields.keys() >= model.model_fields.keys()
    assert "response_format" in fields
    assert fields["service_tier"]["enum"] == ["auto", "default", "flex", None]
    assert (fields["priority"]["minimum"], fields["priority"]["maximum"]) == (-5, 7)
    assert fields["n"]["maximum"] == SERVED.max_prompts


@pytest.mark.parametrize("name", list(REQUIRED))
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("n", 0),
        ("n", 129),
        ("logit_bias", {"AI": 1}),
        ("logit_bias", {"1": 101}),
        ("stop", ""),
        ("stop", ["a"] * 5),
        ("max_tokens", 2**31),
        ("priority", 8),
        ("service_tier", "gold"),
        ("timeout_ms", 0),
        ("logprobs", 21),
        ("model", "gpt-4"),
    ],
    ids=str,
)
def test_what_is_refused_does_not_fit_it(name: str, field: str, value: Any) -> None:
    assert not schema_of(name).is_valid({**REQUIRED[name], field: value})


@pytest.mark.parametrize("name", list(REQUIRED))
def test_bounded_lists_and_strings_are_so_in_it(name: str) -> None:
    fits = schema_of(name).is_valid
    given = REQUIRED[name]
    assert fits({**given, "stop": "x" * 1000})
    assert not fits({**given, "stop": "x" * 1001})
    assert not fits({**given, "stop": ["x" * 1001]})
    biases = {str(token): 1 for token in range(1025)}
    assert not fits({**given, "logit_bias": biases})
    assert fits({**given, "logit_bias": dict(list(biases.items())[1:])})


@pytest.mark.parametrize("name", list(REQUIRED))
@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_what_is_accepted_fits_it(name: str, fields: dict[str, Any]) -> None:
    given = {k: v for k, v in fields.items() if v is not None and k not in ("priority", "n")}
    if given.get("stream_options") == {"include_usage": None}:
        return  # a null means nothing, which the document does not say of every field
    schema_of(name).validate({**REQUIRED[name], **given})


@pytest.mark.parametrize("turn", [{"content": None}, {"content": []}, {}], ids=str)
def test_only_an_assistants_turn_may_have_no_content(turn: dict[str, Any]) -> None:
    schema = schema_of("Message")
    schema.validate({"role": "assistant", **turn})
    for role in ("system", "developer", "user", "tool"):
        assert not schema.is_valid({"role": role, **turn})
        schema.validate({"role": role, "content": "x"})


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_answers_and_errors_fit_it(data: st.DataObject) -> None:
    text, finish = data.draw(st.text(max_size=5)), data.draw(st.sampled_from(list(FinishReason)))
    for call, name in ((chat_call({}), "ChatCompletion"), (completion_call({}), "Completion")):
        schema_of(name).validate(call.answer([Choice(text, finish)], Usage(1, 2), "fp"))
    error: ApiError = internal()
    schema_of("Error").validate(error.envelope())


def test_a_key_is_said_to_be_needed_where_it_is() -> None:
    locked = {
        path
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        if "security" in operation
    }
    assert locked == DOCUMENT["paths"].keys() - {"/health", "/metrics"}
    open_to_all = document(SERVED, "1", False)
    assert "security" not in json.dumps(open_to_all)

"""Structured output: every way to ask for it, and every way in which it is refused."""

import contextlib
import json
import random
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.messages import refuse
from deployments.openai import structured
from deployments.openai.errors import BadRequest
from deployments.openai.structured import grammar_of, literal
from deployments.order import Refused
from deployments.refused import api_error
from engine.loader import DEMO_MODEL, resolve
from engine.request import InvalidParam
from tests.deployments.openai.wire import chat_call, completion_call
from tests.engine.test_guidance import Model

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["n"],
}


@pytest.fixture(scope="module")
def demo() -> Model:
    return Model(resolve(DEMO_MODEL))


def response_format(schema: object, **more: Any) -> dict[str, Any]:
    inner = {"name": "x", "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


def accepts(model: Model, fields: dict[str, Any], text: str) -> bool:
    """Whether the whole of ``text`` is an answer that the fields allow, token by token."""
    grammar = grammar_of(fields)
    assert grammar is not None
    matcher = model.guides.matcher(grammar)
    for token in model.ids(text):
        mask = matcher.mask()
        if not mask[token // 32] >> token % 32 & 1:
            return False
        matcher.push(token)
    eos = model.eos[0]
    return bool(matcher.mask()[eos // 32] >> eos % 32 & 1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": None, "guided_regex": None, "guided_choice": None},
    ],
)
def test_what_asks_for_nothing_gets_no_grammar(fields: dict[str, Any]) -> None:
    assert grammar_of(fields) is None


GOOD: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        response_format(SCHEMA),
        ['{"n": 1}', '{"n":1,"s":"é\\n"}', '{\n  "n": 2\n}'],
        ["{}", "1", ""],
    ),
    (response_format(SCHEMA, strict=False), ['{"n": 1}'], ["{}"]),
    (response_format(SCHEMA, strict=True), ['{"n": 1}'], ["{}"]),
    ({"response_format": {"type": "json_object"}}, ["{}", '{"a": [1, null]}'], ["[]", "{", " {}"]),
    ({"structured_outputs": {"json": SCHEMA}}, ['{"n": 1}'], ["{}"]),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, ['{"n": 1}'], ["{}"]),
    ({"structured_outputs": {"json_object": True}}, ["{}"], ["1"]),
    ({"structured_outputs": {"regex": "[a-c]{2}"}}, ["ab"], ["a", "abc", "xy"]),
    ({"structured_outputs": {"regex": "^a$"}}, ["a"], ["^a$", ""]),
    ({"structured_outputs": {"choice": ["a", "ab", "b c"]}}, ["a", "ab", "b c"], ["b", "abc"]),
    ({"structured_outputs": {"grammar": 'start: "x" start | "y"'}}, ["y", "xxy"], ["x"]),
    ({"guided_json": SCHEMA}, ['{"n": 1}'], ["{}"]),
    ({"guided_json": {}}, ["1", "{}", "null"], ["x"]),
    ({"guided_regex": "a|b"}, ["a", "b"], ["ab"]),
    ({"guided_choice": ["yes", "no"]}, ["yes", "no"], ["y"]),
    ({"guided_grammar": 'start: "x"'}, ["x"], ["y"]),
]


@pytest.mark.parametrize(("fields", "good", "bad"), GOOD)
def test_each_way_to_ask_is_enforced(
    demo: Model, fields: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not accepts(demo, fields, text)] == []
    assert [text for text in bad if accepts(demo, fields, text)] == []


def test_blanks_in_json_end() -> None:
    fields = {"response_format": {"type": "json_object"}}
    model = Model(resolve(DEMO_MODEL))
    assert accepts(model, fields, '{\n    "a": 1,\n    "b": [\n        1\n    ]\n}')
    for blanks in ("  ", "\n\n", " \n", "\n" + " " * 33):
        assert not accepts(model, fields, "{" + blanks + "}")


def test_an_escape_does_not_get_a_name_past_its_schema(demo: Model) -> None:
    fields = {"guided_json": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}
    assert not accepts(demo, fields, '{"a":"x","\\u0061":5}')
    assert not accepts(demo, fields, '{"a":"x","a":5}')
    for text in ("é日本😀", '\\n\\r\\t\\b\\f\\\\\\"', "a/b\u2028"):
        assert accepts(demo, fields, f'{{"a":"{text}"}}'), text
    # A name that needs one has it: there is no other way to spell it.
    named = {"guided_json": {"properties": {"\x01": {"type": "string"}}}}
    assert accepts(demo, named, '{"\\u0001":"x"}')
    assert not accepts(demo, named, '{"\\u0001":5}')


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^[^\x00-\x1f]b$", "ab", "b"),
        (r"^[\x01a]b$", "ab", "b"),
        (r"^[]\x01]$", "]", ""),
        (r"^\\x01\x41\t$", r"\\x01A\t", r"\\A\t"),
        ("^a.b$", "aéb", "ab"),
    ],
)
def test_a_set_may_hold_control_characters(demo: Model, pattern: str, good: str, bad: str) -> None:
    fields = {"guided_json": {"type": "string", "pattern": pattern}}
    assert accepts(demo, fields, f'"{good}"')
    assert not accepts(demo, fields, f'"{bad}"')


@given(texts=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_text_can_be_a_choice(texts: list[str]) -> None:
    fields = {"guided_choice": texts}
    assert grammar_of(fields) is not None
    assert re.fullmatch("|".join(f"({_python(literal(text))})" for text in texts), texts[-1])


def _python(pattern: str) -> str:
    """The same expression, as Python's re spells code points."""
    return re.sub(r"\\x\{(\w+)\}", lambda found: f"\\U{int(found[1], 16):08x}", pattern)


@pytest.mark.parametrize(
    "text", ['q"uo\\te', "nl\n", "日本", "\u2028", "\x7f", "\x01", "/x/", "😀"]
)
def test_a_choice_is_taken_literally(demo: Model, text: str) -> None:
    assert accepts(demo, {"guided_choice": ["else", text]}, text)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (response_format(SCHEMA, strict="yes"), "response_format.json_schema.strict"),
    (response_format([1]), "response_format.json_schema.schema"),
    (response_format({"not": {}}), "response_format.json_schema.schema"),
    (response_format({"type": "wat"}), "response_format.json_schema.schema"),
    (response_format({"$ref": "http://127.0.0.1:9/x"}), "response_format.json_schema.schema"),
    (response_format({"$ref": "#/$defs/none"}), "response_format.json_schema.schema"),
    (response_format({"format": "no-such"}), "response_format.json_schema.schema"),
    (response_format({"uniqueItems": True}), "response_format.json_schema.schema"),
    (
        response_format({"not": {}, "x-guidance": {"lenient": True}}),
        "response_format.json_schema.schema",
    ),
    (
        response_format({"type": "integer", "multipleOf": 999_983}),
        "response_format.json_schema.schema",
    ),
    (response_format({"enum": ["x" * 200_000]}), "response_format.json_schema.schema"),
    ({"structured_outputs": []}, "structured_outputs"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    # Free text would pass for an answer that fits.
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": None, "json_object": False}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"guided_json": ""}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_grammar": ""}, "guided_grammar"),
    ({"guided_regex": "["}, "guided_regex"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_regex": "a" * 200_000}, "guided_regex"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_grammar": "start: none"}, "guided_grammar"),
    ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
    ({"guided_grammar": 'start: %json {"type": "object"}'}, "guided_grammar"),
    ({"guided_grammar": "start: A\nA: " + "/a/ & " * 20 + "/a/"}, "guided_grammar"),
    # Characters that only "\\uXXXX" could write.
    ({"guided_json": {"const": "a\x01"}}, "guided_json"),
    ({"guided_json": {"items": {"enum": ["b", {"c": ["\x7f"]}]}}}, "guided_json"),
    ({"guided_json": {"type": "string", "pattern": "^a\x01b$"}}, "guided_json"),
    ({"guided_json": {"type": "string", "pattern": r"^\[\x01]b$"}}, "guided_json"),
    ({"guided_json": {"type": "string", "pattern": r"^a\u{7F}b$"}}, "guided_json"),
    ({"guided_json": {"type": "string", "pattern": r"^a[\u001f]b$"}}, "guided_json"),
    ({"guided_json": {"type": "object", "patternProperties": {r"\v": {}}}}, "guided_json"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({**response_format(SCHEMA), "guided_regex": "a"}, "guided_regex"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        grammar_of(fields)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
    assert len(caught.value.message) < 600
    assert "\n<" not in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"enum": ["x" * 200_000]}},
        {"guided_regex": "a" * 200_000},
        {"guided_choice": ["a" * 200_000]},
        {"guided_grammar": "a" * 200_000},
    ],
    ids=list,
)
def test_what_is_too_long_is_not_even_read(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    def read(*_: object) -> None:
        raise AssertionError

    for name in ("require_tame", "check_grammar", "literal"):
        monkeypatch.setattr(structured, name, read)
    (field,) = fields
    with pytest.raises(BadRequest, match=f"'{field}'.* at most 131072 characters") as caught:
        grammar_of(fields)
    assert caught.value.param == field
    assert len(caught.value.message) < 200


def test_thirty_intersected_patterns_do_not_take_minutes() -> None:
    patterns = [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(1, 30)]
    with pytest.raises(BadRequest, match="29 patterns and formats"):
        grammar_of(response_format({"allOf": patterns}))
    chain = {f"d{i}": {"pattern": f"a.{{{i}}}b", "$ref": f"#/$defs/d{i + 1}"} for i in range(29)}
    with pytest.raises(BadRequest, match="29 patterns and formats"):
        grammar_of(response_format({"$defs": chain, "$ref": "#/$defs/d0"}))


def test_many_patterns_side_by_side_are_fine() -> None:
    fields = {f"f{i}": {"type": "string", "pattern": f"^a{{{i}}}$"} for i in range(1, 60)}
    assert grammar_of(response_format({"type": "object", "properties": fields}))


def test_five_hundred_patterns_of_names_do_not_take_seconds() -> None:
    def named(count: int) -> dict[str, Any]:
        patterns: dict[str, Any] = {f"^p{i}x": {} for i in range(count)}
        return response_format({"type": "object", "patternProperties": patterns})

    assert grammar_of(named(50))
    with pytest.raises(BadRequest, match="500 'patternProperties'"):
        grammar_of(named(500))


def test_branches_have_to_exclude_each_other_visibly() -> None:
    kinds = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in "ab"
    ]
    assert grammar_of(response_format({"oneOf": kinds}))
    for overlapping in ([{"type": "integer"}, {"minimum": 3}], [{"const": 1}, {"const": 2}]):
        with pytest.raises(BadRequest, match="use 'anyOf'"):
            grammar_of(response_format({"oneOf": overlapping}))


def test_multiples_multiply() -> None:
    primes = [{"type": "integer", "multipleOf": prime} for prime in (101, 103, 107)]
    with pytest.raises(BadRequest, match="multipleOf"):
        grammar_of(response_format({"allOf": primes}))
    both = {"type": "array", "prefixItems": primes}
    assert grammar_of(response_format(both))


@pytest.mark.parametrize("value", [0.01, 0.05, 2.5, 1e-9, 10_000, 0.1])
def test_multiples_in_use_are_enforced(value: float) -> None:
    assert grammar_of(response_format({"type": "number", "multipleOf": value}))


@pytest.mark.parametrize("value", [10_007, 1e22, 123_456.7])
def test_multiples_that_cost_seconds_are_refused(value: float) -> None:
    with pytest.raises(BadRequest, match="multipleOf"):
        grammar_of(response_format({"type": "number", "multipleOf": value}))


def test_a_schema_deeper_than_a_stack_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"items": schema}
    with pytest.raises(BadRequest, match="nested deeper"):
        grammar_of(response_format(schema))


_WORDS = (
    "type properties items enum const pattern minLength maxLength minimum maximum anyOf oneOf "
    "allOf not $ref required additionalProperties format multipleOf minItems prefixItems a b"
)
_KEYS = _WORDS.split()
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["string", "object", "array", "integer", "#", "[a", "a+", "date", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(schema=st.dictionaries(st.sampled_from(_KEYS), _values, max_size=4))
@settings(max_examples=200, deadline=None)
def test_whatever_the_schema_it_is_enforced_or_a_400(schema: dict[str, Any]) -> None:
    # Anything but a BadRequest would be a 500.
    with contextlib.suppress(BadRequest):
        assert grammar_of(response_format(schema))


def properties(count: int, kind: str | None = "string", required: int = 0) -> dict[str, Any]:
    names = [f"property_{i}" for i in range(count)]
    named = {name: {"type": kind} if kind else {} for name in names}
    return {"type": "object", "properties": named, "required": names[:required]}


def test_too_many_optional_properties_are_refused_before_the_first_token(demo: Model) -> None:
    """The masks of 600 cost more than one may, which was a 500 in the middle of the answer."""
    grammar = grammar_of({"guided_json": properties(600)})
    assert grammar is not None
    with pytest.raises(InvalidParam) as refused:
        demo.guides.matcher(grammar)
    error = api_error(Refused(refuse(refused.value)), "guided_json")
    assert (error.status, error.param, error.code) == (400, "guided_json", "grammar_too_complex")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (properties(400), "x"),
        (properties(400, "integer"), 10),
        (properties(300, None), True),
        (properties(1000, "integer", required=1000), 10),
    ],
    ids=["400 strings", "400 integers", "300 of any kind", "1000 required"],
)
def test_as_many_properties_as_are_documented_are_enforced(
    demo: Model, schema: dict[str, Any], value: Any
) -> None:
    every = dict.fromkeys(schema["properties"], value)
    assert accepts(demo, {"guided_json": schema}, json.dumps(every))


def test_what_is_drawn_from_the_grammar_is_valid(demo: Model) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": -9, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
    grammar = grammar_of(response_format(schema))
    assert grammar is not None
    for seed in range(20):
        tokens = demo.walk(grammar, random.Random(seed))
        jsonschema.validate(json.loads(demo.text(tokens)), schema)


@pytest.mark.parametrize(
    "call", [chat_call, lambda fields: completion_call({"prompt": "x", **fields})]
)
def test_both_endpoints_hand_the_grammar_to_the_engine(call: Any) -> None:
    assert [job.params.grammar for job in call({"n": 2}).jobs] == [None, None]
    fields = response_format(SCHEMA)
    grammar = grammar_of(fields)
    assert grammar is not None
    assert [job.params.grammar for job in call({"n": 2, **fields}).jobs] == [grammar, grammar]
    with pytest.raises(BadRequest) as caught:
        call({"guided_regex": "["})
    assert caught.value.param == "guided_regex"

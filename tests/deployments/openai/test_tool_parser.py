"""Calls of tools in a text, however it is cut, in each of the formats."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.tool_formats import HERMES, LLAMA3_JSON, MISTRAL, Dialect
from deployments.openai.tool_parser import CallParser, CallPiece

DIALECTS = {
    "hermes": Dialect(HERMES),
    "hermes-special": Dialect(HERMES, {"<tool_call>": 7, "</tool_call>": 8}),
    "llama3": Dialect(LLAMA3_JSON),
    "mistral": Dialect(MISTRAL),
    "mistral-special": Dialect(MISTRAL, {"[TOOL_CALLS]": 5}),
}
TOOLS = ["get_weather", "get", "send"]

Call = tuple[str, str]


def parser(dialect: Dialect) -> CallParser:
    return CallParser(dialect.spelling(TOOLS), lambda index: f"id{index}")


def written(dialect: Dialect, content: str, calls: list[Call]) -> str:
    """What a model writes, as far as it shows."""
    form = dialect.form
    if not calls:
        return content
    show = dialect.visible
    bodies = [show(form.head_of(name)) + given + show(form.tail) for name, given in calls]
    return content + show(form.begin[0]) + show(form.between or "").join(bodies) + show(form.end)


def joined(parts: list[Any]) -> tuple[str, list[dict[str, Any]]]:
    """Content and calls, as a client joins them."""
    content = "".join(part.content for part in parts)
    calls: list[dict[str, Any]] = []
    for piece in (piece for part in parts for piece in part.pieces):
        if piece.name is not None:
            assert piece.index == len(calls)
            calls.append({"id": piece.id, "name": piece.name, "arguments": piece.arguments})
        else:
            assert piece.index == len(calls) - 1
            calls[-1]["arguments"] += piece.arguments
    return content, calls


def parse(dialect: Dialect, pieces: list[str]) -> tuple[str, list[dict[str, Any]], bool]:
    parsing = parser(dialect)
    parts = [parsing.push(piece) for piece in pieces]
    return (*joined([*parts, parsing.end()]), parsing.complete)


def cut(text: str, edges: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(edge % (len(text) + 1) for edge in edges)})
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['}"', "\\{", "</tool_call>", "<tool_call>"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
arguments = st.builds(
    lambda value, ascii: json.dumps(value, ensure_ascii=ascii),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.booleans(),
)
calls = st.lists(st.tuples(st.sampled_from(TOOLS), arguments), max_size=3)
contents = st.text(alphabet="ab \n<>tool_c{}[]\"'é", max_size=20).filter(
    lambda text: "<tool_call>" not in text
)
edges = st.lists(st.integers(0, 10_000), max_size=12)


@given(name=st.sampled_from(sorted(DIALECTS)), content=contents, calls=calls, edges=edges)
def test_whatever_the_cuts_the_calls_are_those_that_were_written(
    name: str, content: str, calls: list[Call], edges: list[int]
) -> None:
    dialect = DIALECTS[name]
    if dialect.form.between is None:
        calls = calls[:1]
    if dialect.marker is None and calls:
        content = ""
    text = written(dialect, content, calls)
    found_content, found, complete = parse(dialect, cut(text, edges))
    # Blanks between a text and its calls belong to neither.
    assert found_content == (content.rstrip() if calls else content)
    assert [(call["name"], call["arguments"]) for call in found] == calls
    assert [call["id"] for call in found] == [f"id{i}" for i in range(len(calls))]
    assert complete is bool(calls)


@given(
    name=st.sampled_from(sorted(DIALECTS)),
    text=st.text(alphabet='ab {}[]":,\\<>/tool_calnmegrsTOOLCALLS\n', max_size=40)
    | st.sampled_from(
        [written(d, "x ", [("get", '{"a": 1}')]) + "rest" for d in DIALECTS.values()]
    ),
    edges=edges,
)
def test_any_text_is_parsed_alike_whatever_the_cuts(name: str, text: str, edges: list[int]) -> None:
    dialect = DIALECTS[name]
    assert parse(dialect, cut(text, edges)) == parse(dialect, [text])


@given(
    name=st.sampled_from(["hermes", "mistral"]),
    content=contents,
    calls=calls.filter(len),
    edges=edges,
    end=st.integers(0, 10_000),
)
def test_nothing_of_a_call_leaks_however_early_it_ends(
    name: str, content: str, calls: list[Call], edges: list[int], end: int
) -> None:
    dialect = DIALECTS[name]
    text = written(dialect, content, calls)
    end %= len(text) + 1
    found_content, found, complete = parse(dialect, cut(text[:end], edges))
    marker = dialect.marker or ""
    if end < len(content) + len(marker):
        assert found_content == text[:end]
        assert found == []
    else:
        assert found_content == content.rstrip()
    assert complete == (end == len(text)) or len(found) >= 1
    for call, (tool, whole) in zip(found, calls, strict=False):
        assert call["name"] == tool
        assert whole.startswith(call["arguments"])


def test_text_is_told_as_it_comes() -> None:
    parsing = parser(DIALECTS["hermes"])
    assert parsing.push("Hello").content == "Hello"
    assert parsing.push(" there <b>").content == " there <b>"
    assert parsing.push("<tool").content == ""
    assert parsing.push("box>").content == "<toolbox>"


def test_blanks_wait_until_it_is_known_what_follows() -> None:
    parsing = parser(DIALECTS["hermes"])
    assert parsing.push("Well. \n").content == "Well."
    assert parsing.push("So").content == " \nSo"
    assert parsing.push(" ").content == ""
    assert parsing.push("<tool_call>").content == ""
    assert parsing.push('\n{"name": "get", "arguments": {}').content == ""
    assert parse(DIALECTS["hermes"], ["Well", ". "]) == ("Well. ", [], False)


def test_arguments_are_told_as_they_come() -> None:
    parsing = parser(DIALECTS["hermes"])
    assert parsing.push('<tool_call>\n{"name": "get').pieces == []
    assert parsing.push('", "arguments": ').pieces == [CallPiece(0, "", "get", "id0")]
    assert parsing.push('{"a"').pieces == [CallPiece(0, '{"a"')]
    assert parsing.push(": {}}").pieces == [CallPiece(0, ": {}}")]
    assert not parsing.complete
    assert parsing.push("}\n</tool_call>").pieces == []
    assert parsing.complete


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get"}</tool_call>',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        "<tool_call> is how one writes it",
        "</tool_call>",
    ],
)
def test_what_only_looks_like_a_call_stays_content(text: str) -> None:
    assert parse(DIALECTS["hermes"], list(text)) == (text, [], False)


@pytest.mark.parametrize("text", ['{"name": "unknown", "parameters": {}}', '{"a": 1}', '{"na', " "])
def test_json_that_is_no_call_stays_content(text: str) -> None:
    assert parse(DIALECTS["llama3"], list(text)) == (text, [], False)


@given(
    name=st.sampled_from([name for name, dialect in DIALECTS.items() if dialect.marker is None]),
    before=st.text(alphabet=" \n\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000\ufeffa", max_size=3),
    after=st.text(max_size=3),
    edges=edges,
)
def test_what_the_grammar_takes_for_text_is_parsed_as_text(
    name: str, before: str, after: str, edges: list[int]
) -> None:
    dialect = DIALECTS[name]
    call = written(dialect, "", [("get", "{}")])
    text = before + call.lstrip("\n") + after
    # As in the grammar of free answers.
    looks = re.match(rf"[ \t\r\n]*{re.escape(dialect.opening)}", text) is not None
    content, found, _ = parse(dialect, cut(text, edges))
    assert bool(found) is looks
    if not looks:
        assert content == text


def test_a_call_in_the_middle_of_a_text_is_none_where_calls_begin_answers() -> None:
    text = 'Like {"name": "get", "parameters": {}}'
    assert parse(DIALECTS["llama3"], list(text)) == (text, [], False)


def test_pieces_in_the_shape_of_the_api() -> None:
    assert CallPiece(1, "", "get", "x").body() == {
        "index": 1,
        "id": "x",
        "type": "function",
        "function": {"name": "get", "arguments": ""},
    }
    assert CallPiece(1, "{").body() == {"index": 1, "function": {"arguments": "{"}}

"""Tools: what is asked for, what the grammar makes of it, and what a client gets."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import AddedToken

from deployments.openai import structured
from deployments.openai import tools as tools_module
from deployments.openai.call import CallsMade, Choice, Usage
from deployments.openai.errors import BadRequest
from deployments.openai.sse import EventStream
from deployments.openai.tokenize import tokenize
from deployments.openai.tool_formats import (
    FORMATS,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    Dialect,
    dialect_of,
)
from deployments.openai.tool_parser import joined
from deployments.openai.tools import ToolChoice
from deployments.openai.view import View
from engine.guidance import Guides
from engine.loader import DEMO_MODEL, load_tokenizer, resolve
from engine.request import FinishReason
from tests.deployments.openai.wire import SERVED, ByteTokenizer, chat_call
from tests.engine.test_guidance import Model

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}


HERMES_TEMPLATE = (Path(__file__).parents[2] / "data" / "hermes.jinja").read_text()
NO_NAMES: Any = None  # of tokens: nobody asks for log-probabilities here


def tool(name: str = "get_weather", **function: Any) -> dict[str, Any]:
    function = {"parameters": WEATHER, **function}
    return {"type": "function", "function": {"name": name, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


class ToolTokenizer(ByteTokenizer):
    """Notes the tools that the template is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.tools: Any = None

    def apply_chat_template(self, *args: Any, tools: Any = None, **options: Any) -> str:
        self.tools = tools
        return super().apply_chat_template(*args, **options)


PLAIN = Dialect(HERMES)


def ask(dialect: Dialect | None = PLAIN, **fields: Any) -> Any:
    tokenizer = fields.pop("tokenizer", None) or ToolTokenizer()
    return chat_call(fields, served=replace(SERVED, dialect=dialect), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def demo() -> Model:
    return Model(resolve(DEMO_MODEL))


# ---- what is asked for ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [tool("no blanks")]}, "tools.0.function.name"),
        ({"tools": [tool("x" * 65)]}, "tools.0.function.name"),
        ({"tools": [tool(parameters=[])]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"not": {}})]}, "tools.0.function.parameters"),
        (
            {"tools": [tool("f"), tool("g", parameters={"$ref": "x"})]},
            "tools.1.function.parameters",
        ),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": named("other")}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": 5}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [], "tool_choice": named("f")}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"tools": [tool()], "response_format": {"type": "json_object"}}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
    ],
    ids=str,
)
def test_what_is_wrong_with_tools_is_said_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(**fields)
    assert caught.value.param == param


def test_a_model_without_tools_says_so() -> None:
    with pytest.raises(BadRequest, match="knows no tools") as caught:
        ask(None, tools=[tool()])
    assert caught.value.param == "tools"
    for turn in (
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        {"role": "assistant", "tool_calls": [{"id": "1", **named("f")}]},
    ):
        if "tool_calls" in turn:
            turn["tool_calls"][0]["function"]["arguments"] = "{}"  # type: ignore[index]
        with pytest.raises(BadRequest) as caught:
            ask(None, messages=[turn])
        assert caught.value.param == "messages.0"


def test_no_tools_change_nothing() -> None:
    for fields in ({}, {"tools": []}, {"tools": [], "tool_choice": "none"}):
        call = ask(**fields)
        assert call.tools is None
        assert call.jobs[0].params.grammar is None


def test_tools_that_must_not_be_called_are_not_shown() -> None:
    tokenizer = ToolTokenizer()
    call = ask(tools=[tool()], tool_choice="none", tokenizer=tokenizer)
    assert call.tools is None
    assert call.jobs[0].params.grammar is None
    assert tokenizer.tools is None
    form = {"type": "json_object"}
    assert ask(tools=[tool()], tool_choice="none", response_format=form).jobs[0].params.grammar


def test_the_template_is_told_of_the_tools() -> None:
    tokenizer = ToolTokenizer()
    ask(tools=[tool(description="Tell it.", strict=True)], tokenizer=tokenizer)
    function = {"name": "get_weather", "description": "Tell it.", "parameters": WEATHER}
    assert tokenizer.tools == [{"type": "function", "function": function}]


def test_the_template_sees_calls_and_answers() -> None:
    tokenizer = ToolTokenizer()
    made = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    ]
    ask(messages=messages, tokenizer=tokenizer)
    (turns,) = tokenizer.conversations
    function = {"name": "f", "arguments": {"a": 1}}
    called = {"type": "function", "function": function, "id": "c1"}
    assert turns[1] == {"role": "assistant", "content": "", "tool_calls": [called]}
    assert turns[2] == {"role": "tool", "content": "2", "tool_call_id": "c1"}


def made(arguments: Any) -> dict[str, Any]:
    """A turn that calls a tool."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


@pytest.mark.parametrize("arguments", [{}, None, 5, '{"a": "\\ud800"}', '{"\\udc00": 1}'], ids=str)
def test_arguments_that_are_no_text_are_refused(arguments: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(messages=[made(arguments)])
    assert caught.value.param == "messages.0.tool_calls.0.function.arguments"


@pytest.mark.parametrize("arguments", ['{"city": "Par', "{", "[]", "5", "null", "[" * 5000, "é"])
def test_a_call_that_was_cut_short_is_told_as_it_was_written(arguments: str) -> None:
    tokenizer = ToolTokenizer()
    ask(messages=[made(arguments)], tokenizer=tokenizer)
    ((turn,),) = tokenizer.conversations
    calls: Any = turn["tool_calls"]
    assert calls[0]["function"]["arguments"] == arguments
    # The template of the tests writes it, as most do.
    text = load_tokenizer(resolve(DEMO_MODEL)).apply_chat_template(
        [turn], chat_template=HERMES_TEMPLATE, tokenize=False
    )
    assert json.dumps(arguments, ensure_ascii=False) in text


NESTED = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [made('{"a":' + NESTED + "}")]},
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [tool("f", parameters=None), tool("g", parameters={"x": json.loads(NESTED)})],
        },
    ],
    ids=["arguments", "parameters"],
)
def test_what_is_nested_too_deeply_for_the_template_is_a_400(fields: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(resolve(DEMO_MODEL))
    tokenizer.chat_template = HERMES_TEMPLATE
    served = replace(SERVED, dialect=PLAIN)
    # Only what may be called is compiled, but the template is told of all.
    chosen = {"tool_choice": named("f")} if "tools" in fields else {}
    with pytest.raises(BadRequest, match="nested too deeply") as chat:
        chat_call({**fields, **chosen}, served=served, tokenizer=tokenizer)
    with pytest.raises(BadRequest, match="nested too deeply") as tokens:
        tokenize(json.dumps(fields).encode(), tokenizer, served)
    assert chat.value.param == tokens.value.param == "messages"


def test_only_assistants_call() -> None:
    made = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(BadRequest) as caught:
        ask(messages=[{"role": "user", "content": "x", "tool_calls": [made]}])
    assert caught.value.param == "messages.0.tool_calls"


def test_tools_that_are_too_long_together_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compile_(*_: object) -> None:
        raise AssertionError

    for module in (tools_module, structured):
        monkeypatch.setattr(module, "checked", compile_)
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(300)}}
    with pytest.raises(BadRequest, match="at most 131072 characters") as caught:
        ask(tools=[tool(f"f{i}", parameters=wide) for i in range(128)])
    assert caught.value.param == "tools"


def test_all_tools_are_compiled_together_and_one_by_one_only_to_name_a_wrong_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []

    def check(grammar: str, field: str) -> str:
        compiled.append(field)
        return structured.checked(grammar, field)

    monkeypatch.setattr(tools_module, "checked", check)
    ask(tools=[tool(f"f{i}") for i in range(5)])
    assert compiled == ["tools"]
    compiled.clear()
    with pytest.raises(BadRequest) as caught:
        ask(tools=[tool("a"), tool("b", parameters={"not": {}}), tool("c")])
    assert caught.value.param == "tools.1.function.parameters"
    assert compiled == ["tools", *(f"tools.{i}.function.parameters" for i in range(2))]


def test_what_no_arguments_fit_is_refused() -> None:
    nothing = {"properties": {"a": False}, "required": ["a"]}
    with pytest.raises(BadRequest) as caught:
        ask(tools=[tool("a"), tool("b", parameters=nothing)])
    assert caught.value.param == "tools.1.function.parameters"


# ---- which format ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", MISTRAL),
        ("""{% if tools %}{{ '"parameters": ' }} {"name": "parameters"}{% endif %}""", LLAMA3_JSON),
        ("{% for m in messages %}{{ m }}{% endfor %}", None),
        ("{{ messages }} my_tools_here", None),
        ("{% if tools %}{% endif %}", None),
        ({"default": "{{ messages }}", "tool_use": "{{ tools }}<tool_call>"}, HERMES),
        (None, None),
    ],
)
def test_the_format_is_the_one_that_the_template_writes(template: Any, form: Any) -> None:
    class Backend:
        def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
            return {}

    class Tokenizer:
        chat_template = template
        backend_tokenizer = Backend()

    found = dialect_of("auto", Tokenizer())
    assert (None if found is None else found.form) == form


def test_a_format_can_be_named_but_not_where_the_template_knows_no_tools() -> None:
    tokenizer = load_tokenizer(resolve(DEMO_MODEL))
    assert dialect_of("hermes", tokenizer) is None
    tokenizer.chat_template = "{% if tools %}{% endif %}"
    for name, form in FORMATS.items():
        found = dialect_of(name, tokenizer)
        assert found is not None
        assert found.form is form


# ---- what the model can write ---------------------------------------------------------

SPECIAL = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")


class Marked(Model):
    """The demo model's tokenizer with the formats' marks as tokens of their own."""

    def __init__(self, special: bool) -> None:
        super().__init__(resolve(DEMO_MODEL))
        self.tokenizer.add_tokens(
            [AddedToken(mark, special=special, normalized=False) for mark in SPECIAL],
            special_tokens=special,
        )
        self.vocab = len(self.tokenizer)
        self.guides = Guides(self.tokenizer, self.vocab, self.eos)

    def dialect(self, form: str) -> Dialect:
        self.tokenizer.chat_template = "{{ tools }}"
        found = dialect_of(form, self.tokenizer)
        assert found is not None
        return found

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.fixture(scope="module")
def marked() -> Marked:
    return Marked(special=False)


@pytest.fixture(scope="module")
def special() -> Marked:
    return Marked(special=True)


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("vocabulary", ["demo", "marked", "special"])
@pytest.mark.parametrize("choice", ["required", named("send")])
def test_a_forced_call_is_whole_and_right_whatever_is_drawn(
    request: pytest.FixtureRequest, form: str, vocabulary: str, choice: Any
) -> None:
    model: Model = request.getfixturevalue(vocabulary)
    dialect = model.dialect(form) if isinstance(model, Marked) else Dialect(FORMATS[form])
    tools = [tool(), tool("send", parameters=None)]
    call = ask(dialect, tools=tools, tool_choice=choice)
    grammar = call.jobs[0].params.grammar
    assert not allows(model, grammar, "Hello")
    assert not allows(model, grammar, "")
    for seed in range(4):
        tokens = model.walk(grammar, random.Random(seed), 400)
        if len(tokens) == 400:  # call after call, without an end
            continue
        parser = call.tools.parser(0)
        parsed = parser.push(model.text(tokens))
        assert parser.end().content == parsed.content == ""
        assert parser.complete
        for made in joined(parsed.pieces):
            arguments = json.loads(made["function"]["arguments"])
            if choice != "required" or made["function"]["name"] == "send":
                assert (made["function"]["name"], arguments) == ("send", {})
            else:
                jsonschema.validate(arguments, WEATHER)


def allows(model: Model, grammar: str, text: str) -> bool:
    matcher = model.guides.matcher(grammar)
    for token in model.ids(text):
        if not matcher.mask()[token // 32] >> token % 32 & 1:
            return False
        matcher.push(token)
    return bool(matcher.mask()[2 // 32] >> 2 & 1)


CALL = '{"city": "Rome"}'
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": ' + CALL + "}\n</tool_call>",
    "llama3_json": '{"name": "get_weather", "parameters": ' + CALL + "}",
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + CALL + "}]",
}


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("vocabulary", ["marked", "special"])
def test_a_free_answer_is_any_text_or_right_calls(
    request: pytest.FixtureRequest, form: str, vocabulary: str
) -> None:
    model: Marked = request.getfixturevalue(vocabulary)
    dialect = model.dialect(form)
    grammar = ask(dialect, tools=[tool()]).jobs[0].params.grammar
    good = WRITTEN[form]
    for text in ("", "Hello there", '{"a": 1}', "a < b <tool", "[1, 2]", good):
        assert allows(model, grammar, text), text
    assert not allows(model, grammar, good.replace("Rome", "Oslo"))
    assert not allows(model, grammar, good.replace("get_weather", "other"))
    assert not allows(model, grammar, good[:-1])
    assert not allows(model, grammar, good.replace('"}', '", "\\u0064ays": "x"}', 1))
    if dialect.marker is None:
        # The parser takes no other blanks for blanks either.
        assert not allows(model, grammar, f" \t\r\n{dialect.opening}x")
        for blank in ("\x0b", "\xa0", "\u3000", " \x1c"):
            assert allows(model, grammar, f"{blank}{dialect.opening}x")
    # Where calls begin the answer, what looks like one further on is text.
    middle = dialect.marker is not None or not dialect.form.marks
    assert allows(model, grammar, "I look. " + good) is middle


def test_one_call_where_more_are_not_wanted(marked: Marked) -> None:
    twice = WRITTEN["hermes"] + "\n" + WRITTEN["hermes"]
    several = {"tools": [tool()], "tool_choice": "required"}
    dialect = marked.dialect("hermes")
    assert allows(marked, ask(dialect, **several).jobs[0].params.grammar, twice)
    for fields in ({"parallel_tool_calls": False}, {"tool_choice": named("get_weather")}):
        grammar = ask(dialect, **{**several, **fields}).jobs[0].params.grammar
        assert allows(marked, grammar, WRITTEN["hermes"])
        assert not allows(marked, grammar, twice)


# ---- what a client gets ---------------------------------------------------------------


def chunks(call: Any, texts: list[str], finish: FinishReason) -> list[Any]:
    view = View.of(call, 0, NO_NAMES)
    assert view is not None
    wire = EventStream(call)
    data = b""
    for index, text in enumerate(texts):
        last = finish if index == len(texts) - 1 else None
        seen, end = view.see(text, last, None)
        data += wire.push(0, seen, end, view.logprobs(), None, view.calls())
    events = data.decode().split("\n\n")[:-1]
    return [ChatCompletionChunk.model_validate_json(e.removeprefix("data: ")) for e in events]


def whole(call: Any, texts: list[str], finish: FinishReason) -> ChatCompletion:
    view = View.of(call, 0, NO_NAMES)
    assert view is not None
    seen = [
        view.see(text, finish if i == len(texts) - 1 else None, None)
        for i, text in enumerate(texts)
    ]
    end = seen[-1][1]
    assert end is not None
    choice = Choice("".join(text for text, _ in seen), end, None, view.calls())
    return ChatCompletion.model_validate(call.answer([choice], Usage(1, 1), "f"))


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_a_stream_joins_to_the_whole_answer(size: int) -> None:
    call = ask(tools=[tool()])
    text = "Let me see.\n" + WRITTEN["hermes"] + "\n" + WRITTEN["hermes"].replace("Rome", "Paris")
    texts = [text[at : at + size] for at in range(0, len(text), size)]
    message = whole(call, texts, FinishReason.STOP).choices[0]
    assert message.finish_reason == "tool_calls"
    assert message.message.content == "Let me see."
    made = message.message.tool_calls
    assert made is not None
    assert [json.loads(one.function.arguments)["city"] for one in made] == ["Rome", "Paris"]  # type: ignore[union-attr]
    assert len({one.id for one in made}) == 2
    content, joined_calls, finish = "", {}, None
    for chunk in chunks(call, texts, FinishReason.STOP):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
        for piece in delta.tool_calls or []:
            assert piece.function is not None
            known = joined_calls.setdefault(piece.index, {"id": piece.id, "arguments": ""})
            known["name"] = piece.function.name or known["name"]
            known["arguments"] += piece.function.arguments or ""
    assert (content, finish) == ("Let me see.", "tool_calls")
    assert [joined_calls[one] for one in sorted(joined_calls)] == [
        {"id": one.id, "name": one.function.name, "arguments": one.function.arguments}  # type: ignore[union-attr]
        for one in made
    ]


def test_a_call_that_is_cut_short_is_none_to_be_carried_out() -> None:
    call = ask(tools=[tool()])
    for cut, finish in (
        (60, FinishReason.LENGTH),
        (60, FinishReason.STOP),
        (20, FinishReason.LENGTH),
    ):
        answer = whole(call, [WRITTEN["hermes"][:cut]], finish).choices[0]
        assert answer.finish_reason == finish.value
        assert not answer.message.content
    assert (
        whole(call, [WRITTEN["hermes"]], FinishReason.LENGTH).choices[0].finish_reason == "length"
    )


def test_an_answer_without_calls_is_as_ever() -> None:
    answer = whole(ask(tools=[tool()]), ["Hello", " there"], FinishReason.STOP).choices[0]
    assert answer.message.content == "Hello there"
    assert answer.message.tool_calls is None
    assert answer.finish_reason == "stop"


def test_ids_are_those_of_the_format_and_differ() -> None:
    ids = set()
    for seed in range(3):
        for form in (HERMES, MISTRAL):
            call = ask(Dialect(form), tools=[tool()], tokenizer=ToolTokenizer())
            parser = call.tools.parser(seed)
            (begin, _) = parser.push(WRITTEN[form.name]).pieces[:2]
            ids.add(begin.id)
            assert begin.id.isalnum() is (form is MISTRAL)
            assert len(begin.id) == (9 if form is MISTRAL else 29)
    assert len(ids) == 6


def test_the_end_of_calls_has_its_own_word() -> None:
    assert CallsMade.TOOL_CALLS.value == "tool_calls"
    assert ToolChoice("auto").name is None


def test_what_asked_for_the_form_is_known_by_its_name() -> None:
    assert ask().form is None
    assert ask(tools=[tool()]).form == "tools"
    assert ask(tools=[tool()], tool_choice="none").form is None
    assert ask(structured_outputs={"choice": ["a"]}).form == "structured_outputs.choice"

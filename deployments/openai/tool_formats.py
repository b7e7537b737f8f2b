"""How models write tool calls: the three ways that most of them were trained on."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deployments.openai.structured import literal
from deployments.openai.tool_parser import BLANKS, CallSpelling

EMPTY: Final = '""'


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls of tools; what it writes is JSON but for the marks around it.

    An answer with calls is: maybe a text, ``begin``, a call, ``between`` and a call for each
    further one, ``end``.  A call is ``head`` with the tool's name, the arguments as a JSON
    object, ``tail``.

    Attributes:
        name: of the setting.
        marks: texts that may be special tokens, which do not show in an answer's text.  The
            first, if there is one, begins the calls; without one they begin the answer.
        begin: what stands before the first call; the spellings that are in use.
        head: what stands before the arguments; NAME is the tool's name.
        tail: what stands after the arguments.
        between: what stands between two calls; None for a format of single calls.
        end: what stands after the last call.
        id_chars: characters of a call's id, which some templates check.
    """

    name: str
    marks: tuple[str, ...]
    begin: tuple[str, ...]
    head: str
    tail: str
    between: str | None
    end: str
    id_chars: int = 24

    def head_of(self, tool: str) -> str:
        """Return what stands before the arguments of a call of ``tool``."""
        return self.head.replace("NAME", tool)


HERMES: Final = ToolFormat(
    name="hermes",
    marks=("<tool_call>", "</tool_call>"),
    begin=("<tool_call>",),
    head='\n{"name": "NAME", "arguments": ',
    tail="}\n</tool_call>",
    between="\n<tool_call>",
    end="",
)
LLAMA3_JSON: Final = ToolFormat(
    name="llama3_json",
    marks=(),
    begin=("",),
    head='{"name": "NAME", "parameters": ',
    tail="}",
    between=None,
    end="",
)
MISTRAL: Final = ToolFormat(
    name="mistral",
    marks=("[TOOL_CALLS]",),
    begin=("[TOOL_CALLS][", "[TOOL_CALLS] ["),
    head='{"name": "NAME", "arguments": ',
    tail="}",
    between=", ",
    end="]",
    id_chars=9,
)

FORMATS: Final[Mapping[str, ToolFormat]] = {
    form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL)
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A format as one model's vocabulary has it.

    Attributes:
        form: the format.
        special: its marks that are special tokens -> their ids. They do not show in the text.
    """

    form: ToolFormat
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def marker(self) -> str | None:
        """What begins the calls, if that shows in the text; else they can only begin it."""
        marks = self.form.marks
        return marks[0] if marks and marks[0] not in self.special else None

    @property
    def opening(self) -> str:
        """What no text but a call begins with."""
        head, _, _ = self.form.head.partition("NAME")
        return self.marker or self.visible(self.form.begin[0] + head).lstrip(BLANKS)

    def visible(self, text: str) -> str:
        """Return what shows of ``text``."""
        for mark in self.special:
            text = text.replace(mark, "")
        return text

    def spelling(self, tools: Sequence[str]) -> CallSpelling:
        """Return what calls of ``tools`` look like in a text."""
        form, visible = self.form, self.visible
        first = {
            visible(begin + form.head_of(tool)).lstrip(BLANKS): tool
            for tool in tools
            for begin in form.begin
        }
        further = {}
        if form.between is not None:
            further = {visible(form.between + form.head_of(tool)): tool for tool in tools}
        tail, end = visible(form.tail), visible(form.end)
        return CallSpelling(first, further, tail, self.marker, self.opening, end)

    def grammar(self, tools: Mapping[str, str], forced: bool, several: bool) -> str:
        """Return a Lark grammar of the answers that call tools rightly.

        Args:
            tools: names -> JSON schemas of the arguments, as llguidance takes them.
            forced: there must be a call; else there may also be any text that is none, and
                a text before it where the format has a marker.
            several: there may be more than one.
        """
        form, lark, marker = self.form, self._lark, self.marker
        names = list(tools)
        more = f"({lark(form.between)} call)*" if several and form.between is not None else ""
        lines = [
            f"calls: begin call {more} {lark(form.end)}",
            f"begin: {' | '.join(lark(begin) or EMPTY for begin in form.begin)}",
            f"call: ({' | '.join(f'call_{i}' for i in range(len(names)))}) {lark(form.tail)}",
        ]
        for i, name in enumerate(names):
            lines.append(f"call_{i}: {lark(form.head_of(name))} arguments_{i}")
            lines.append(f"arguments_{i}: %json {tools[name]}")
        if forced:
            return "\n".join(["start: calls", *lines])
        if marker is None:
            # Without a mark that shows, a text must not look like a call.
            texts = rf"/(?s:.*)/ & ~/[{literal(BLANKS)}]*{literal(self.opening)}(?s:.*)/"
            return "\n".join(["start: TEXT | calls", f"TEXT: {texts}", *lines])
        mark = literal(marker)
        lines[:2] = [
            f"calls: marked begin call {more} {lark(form.end)}",
            f"begin: {' | '.join(lark(b.removeprefix(marker)) or EMPTY for b in form.begin)}",
            f"marked[lazy]: /(?s:.*){mark}/",
            f"TEXT: /(?s:.*)/ & ~/(?s:.*){mark}(?s:.*)/",
        ]
        return "\n".join(["start: TEXT | calls", *lines])

    def _lark(self, text: str) -> str:
        """``text`` in a Lark grammar, its special tokens by their ids."""
        marks = "|".join(map(re.escape, self.special))
        parts = re.split(f"({marks})", text) if marks else [text]
        spelled = (
            f"<[{self.special[part]}]>" if part in self.special else json.dumps(part)
            for part in parts
            if part
        )
        return " ".join(spelled)


def template_source(chat_template: Any) -> str:
    """Return the Jinja source of a tokenizer's chat template that would be used with tools."""
    if isinstance(chat_template, Mapping):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    return chat_template if isinstance(chat_template, str) else ""


def dialect_of(setting: str, tokenizer: Any) -> Dialect | None:
    """Return how a model calls tools, None if its chat template knows no tools.

    Args:
        setting: a format's name, or ``auto`` to look for its marks in the template.
        tokenizer: the model's, of transformers.
    """
    source = template_source(tokenizer.chat_template)
    if not re.search(r"\btools\b", source):
        return None
    form = FORMATS[setting] if setting != "auto" else _format_in(source)
    if form is None:
        return None
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
    special = {token.content: id for id, token in added if token.special}
    return Dialect(form, {mark: special[mark] for mark in form.marks if mark in special})


def _format_in(source: str) -> ToolFormat | None:
    for form in (HERMES, MISTRAL):
        if form.marks[0] in source:
            return form
    return LLAMA3_JSON if re.search(r"""["']parameters["']""", source) else None

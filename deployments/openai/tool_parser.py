"""From an answer's text, as it comes, to what is content and what are calls of tools."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

BLANKS: Final = " \t\r\n"
"""What may stand before a call and does not count: the blanks of JSON, and no others."""


@dataclass(frozen=True, slots=True)
class CallSpelling:
    """What a call of a tool looks like in the text, special tokens left out.

    Attributes:
        first: what begins the first call, up to its arguments -> the tool.
        further: the same for a call after another one.
        tail: what stands between a call's arguments and its end.
        marker: begins the calls wherever it is; None if they can only begin the answer.
        opening: what no text but a call begins with.
        end: what stands after the last call.
    """

    first: Mapping[str, str]
    further: Mapping[str, str]
    tail: str
    marker: str | None
    opening: str
    end: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call: its beginning, with a name and an id, or more of its arguments."""

    index: int
    arguments: str
    name: str | None = None
    id: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the entry of a delta's ``tool_calls``."""
        if self.name is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


def joined(pieces: Iterable[CallPiece]) -> list[dict[str, Any]]:
    """Return the ``tool_calls`` of a whole message."""
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.name is not None:
            function = {"name": piece.name, "arguments": piece.arguments}
            calls.append({"id": piece.id, "type": "function", "function": function})
        else:
            calls[piece.index]["function"]["arguments"] += piece.arguments
    return calls


@dataclass(slots=True)
class Parsed:
    """What a text turned out to be."""

    content: str = ""
    pieces: list[CallPiece] = field(default_factory=list)


class _State(Enum):
    TEXT = auto()  # there was no call so far
    CONTENT = auto()  # there will be none
    ARGUMENTS = auto()  # within the arguments of a call
    TAIL = auto()  # between its arguments and its end
    BETWEEN = auto()  # after a call


class CallParser:
    """Parses one answer.

    Joined contents and joined pieces are the same however the text is cut.  Nothing is taken
    back: what may turn out to begin a call waits until that is known.

    Args:
        spelling: of calls.
        new_id: gives the id of the call with an index.
    """

    def __init__(self, spelling: CallSpelling, new_id: Callable[[int], str]) -> None:
        self._spelling = spelling
        self._new_id = new_id
        self._state = _State.TEXT
        self._held = ""
        self._calls = 0
        self._arguments = _ObjectEnd()

    @property
    def complete(self) -> bool:
        """Whether there were calls, and nothing but whole ones."""
        return self._calls > 0 and self._state in (_State.BETWEEN, _State.CONTENT)

    def push(self, text: str) -> Parsed:
        """Return what is certain with ``text``."""
        self._held += text
        out = Parsed()
        while self._held and self._step(out):
            pass
        return out

    def end(self) -> Parsed:
        """Return what is left when no text follows; the beginning of a call is dropped."""
        held, self._held = self._held, ""
        spelling = self._spelling
        if self._state is _State.TEXT and not held.lstrip(BLANKS).startswith(spelling.opening):
            return Parsed(held)
        return Parsed()

    def _step(self, out: Parsed) -> bool:
        """Take something off the held text; False if all of it has to wait."""
        match self._state:
            case _State.TEXT:
                return self._text(out)
            case _State.ARGUMENTS:
                return self._take_arguments(out)
            case _State.TAIL:
                return self._take_tail()
            case _State.BETWEEN:
                return self._after_a_call(out)
            case _:
                return self._release(len(self._held), out)

    def _text(self, out: Parsed) -> bool:
        marker = self._spelling.marker
        if marker is None:
            start = len(self._held) - len(self._held.lstrip(BLANKS))
        else:
            start = self._held.find(marker)
            if start < 0:
                return self._release(_certain(self._held, marker), out)
        found = self._begin(self._held[start:], self._spelling.first, out)
        if found is None:
            # Blanks before a call are no content.
            return self._release(len(self._held[:start].rstrip(BLANKS)), out)
        if found:
            out.content += self._held[:start].rstrip(BLANKS)
            self._held = self._held[start + found :]
            return True
        if marker is None:
            self._state = _State.CONTENT
            return True
        return self._release(start + len(marker), out)

    def _begin(self, text: str, heads: Mapping[str, str], out: Parsed) -> int | None:
        """Begin a call if ``text`` does.

        Returns:
            How many characters that took, 0 if ``text`` begins no call, None if it still may.
        """
        for head, tool in heads.items():
            if text.startswith(head):
                out.pieces.append(CallPiece(self._calls, "", tool, self._new_id(self._calls)))
                self._state, self._arguments = _State.ARGUMENTS, _ObjectEnd()
                return len(head)
        return None if any(head.startswith(text) for head in heads) else 0

    def _take_arguments(self, out: Parsed) -> bool:
        end = self._arguments.find(self._held)
        taken = self._held if end is None else self._held[:end]
        out.pieces.append(CallPiece(self._calls, taken))
        self._held = self._held[len(taken) :]
        if end is not None:
            self._state = _State.TAIL
        return True

    def _take_tail(self) -> bool:
        tail = self._spelling.tail
        if len(self._held) < len(tail) and tail.startswith(self._held):
            return False
        self._held = self._held.removeprefix(tail)
        self._calls += 1
        self._state = _State.BETWEEN
        return True

    def _after_a_call(self, out: Parsed) -> bool:
        found = self._begin(self._held, self._spelling.further, out)
        if found:
            self._held = self._held[found:]
            return True
        if found is None or self._spelling.end.startswith(self._held.strip(BLANKS)):
            return False
        self._state = _State.CONTENT
        return True

    def _release(self, length: int, out: Parsed) -> bool:
        out.content += self._held[:length]
        self._held = self._held[length:]
        return length > 0


def _certain(text: str, marker: str) -> int:
    """How many characters of ``text`` can neither begin the marker nor be blanks before it."""
    for start in range(max(0, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return len(text[:start].rstrip(BLANKS))
    return len(text.rstrip(BLANKS))


class _ObjectEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """Return how much of ``text`` still belongs to the object, None if all does and more."""
        for at, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None

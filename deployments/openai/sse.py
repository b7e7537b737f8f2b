"""Server-sent events, framed as the clients in use read them.

``data: `` with one space, one line an event, LF only, ``data: [DONE]`` last. The format
is in the HTML standard, section "Server-sent events".

Everything of a chunk that does not change from token to token is made once for each
choice, so a token costs one JSON string and one concatenation.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from deployments.openai.call import Call, Finish, Usage
from deployments.openai.errors import ApiError
from deployments.openai.tool_parser import CallPiece

MEDIA_TYPE: Final = "text/event-stream"
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# JSON escapes the control characters below U+0020, but these three too end a line for
# clients that split decoded text by Unicode's rules, as Python's splitlines does.
_LINE_ENDS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_PART: Final = 32  # items of a long list that are encoded together

_NOTHING_MORE: Final = ',"logprobs":null,"finish_reason":null'


def compact(value: Any) -> str:
    """Return ``value`` as JSON on one line, whatever a reader takes for a line's end."""
    text = _dumps(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def in_parts(value: Any, depth: int) -> str:
    """Return what ``compact`` does, made in parts that take a few milliseconds at most.

    Other threads run only between two calls of the encoder.

    Args:
        value: a large one.
        depth: objects and lists inside each other that are taken apart; below them long lists
            still are.
    """
    return "".join(_parts(value, depth))


def _parts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and depth:
        for at, (key, item) in enumerate(value.items()):
            yield f"{',' if at else '{'}{compact(key)}:"
            yield from _parts(item, depth - 1)
        yield "}" if value else "{}"
    elif isinstance(value, list) and depth:
        for at, item in enumerate(value):
            yield "," if at else "["
            yield from _parts(item, depth - 1)
        yield "]" if value else "[]"
    elif isinstance(value, list) and len(value) > _PART:
        for at in range(0, len(value), _PART):
            yield f"{',' if at else '['}{compact(value[at : at + _PART])[1:-1]}"
        yield "]"
    else:
        yield compact(value)


def event(value: Any) -> bytes:
    """Return one event that carries ``value`` as JSON."""
    return f"data: {compact(value)}\n\n".encode()


def error_events(error: ApiError) -> bytes:
    """Return the end of a stream that failed after its first byte.

    A stream that just ends is read as a success, so the error is an event of its own.
    """
    return event(error.envelope()) + DONE


class EventStream:
    """The events of one call: give it what each choice gains, send what it returns.

    Joined deltas are the text; each choice has one opening and one end.
    """

    def __init__(self, call: Call, fingerprint: str | None = None) -> None:
        """Begin a stream.

        Args:
            call: gives the shape, the id and what the client asked to see.
            fingerprint: of the replica's numerics; may be set later, up to the first push.
        """
        self.fingerprint = fingerprint
        self._call = call
        self._shape = call.shape
        self._heads: dict[int, str] = {}
        self._end = _end("null" if call.terms.include_usage else None)
        self._tail = _NOTHING_MORE + self._end
        self._text = self._shape.text
        self._text_tail = self._shape.after + self._tail

    def push(
        self,
        index: int,
        text: str,
        finish: Finish | None = None,
        logprobs: dict[str, Any] | None = None,
        usage: Usage | None = None,
        calls: Iterable[CallPiece] = (),
    ) -> bytes:
        """Return the events for what a choice gained in one step; empty if there are none.

        Args:
            index: of the choice.
            text: new text, "" if the new token does not show yet.
            finish: set with the choice's last text.
            logprobs: of the new tokens, if the client wants them; they do not wait for text.
            usage: the tokens so far, if the client wants them with each chunk.
            calls: what it gained of calls of tools; each piece is a chunk.
        """
        head = self._heads.get(index)
        if head is not None and not (finish or logprobs or usage or calls):
            # What nearly every token is.
            return f"{head}{self._text}{compact(text)}{self._text_tail}".encode() if text else b""
        shape, end, tail, text_tail = self._shape, self._end, self._tail, self._text_tail
        if usage is not None:
            end = _end(compact(usage.body()))
            tail = _NOTHING_MORE + end
            text_tail = shape.after + tail
        if logprobs is not None:
            many = any(isinstance(one, list) and len(one) > _PART for one in logprobs.values())
            told = in_parts(logprobs, 1) if many else compact(logprobs)
            text_tail = f'{shape.after},"logprobs":{told},"finish_reason":null{end}'
        events = ""
        if head is None:
            head = self._heads[index] = self._head(index)
            if shape.opening is not None:
                events = head + shape.opening + tail
            elif not text and finish is None and logprobs is None:
                events = head + shape.text + '""' + text_tail
        if text or logprobs is not None:
            events += head + shape.text + compact(text) + text_tail
        for piece in calls:
            entry = compact(piece.body())
            events += f'{head}"delta":{{"tool_calls":[{entry}]}}{tail}'
        if finish is not None:
            reason = f',"logprobs":null,"finish_reason":"{finish.value}"'
            events += head + shape.closing + reason + end
        return events.encode()

    def end(self, usage: Usage) -> bytes:
        """Return the end of a stream whose choices all ended."""
        if not self._call.terms.include_usage:
            return DONE
        return event({**self._common(), "choices": [], "usage": usage.body()}) + DONE

    def fail(self, error: ApiError) -> bytes:
        """Return the end of a stream that cannot go on."""
        return error_events(error)

    def _common(self) -> dict[str, Any]:
        call = self._call
        common = {
            "id": call.id,
            "object": self._shape.object,
            "created": call.created,
            "model": call.model,
            "system_fingerprint": self.fingerprint,
        }
        tier = call.terms.service_tier
        return common if tier is None else {**common, "service_tier": tier}

    def _head(self, index: int) -> str:
        # Without the object's closing brace, which the tails bring.
        return f'data: {compact(self._common())[:-1]},"choices":[{{"index":{index},'


def _end(usage: str | None) -> str:
    return "}]}\n\n" if usage is None else f'}}],"usage":{usage}}}\n\n'

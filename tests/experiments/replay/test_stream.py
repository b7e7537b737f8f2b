"""Events of an answer, however the network cuts them."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.replay.stream import Stream


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def token(text: str = " a") -> bytes:
    return event({"choices": [{"index": 0, "text": text}], "usage": None})


USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
)
DONE = b"data: [DONE]\n\n"


def test_times_are_those_of_the_first_and_the_last_token() -> None:
    stream = Stream()
    for at, data in enumerate((b": keep-alive\n\n", token(), token(), b"", token(), USAGE, DONE)):
        stream.feed(data, float(at))
    assert (stream.first_at, stream.last_at, stream.longest_gap_s) == (1.0, 4.0, 2.0)
    assert (stream.events, stream.output_tokens, stream.prompt_tokens) == (3, 3, 7)
    assert stream.cached_tokens == 4
    assert stream.done


@given(st.lists(st.integers(0, 400)), st.sampled_from((b"\n", b"\r\n")))
def test_it_does_not_matter_where_what_comes_is_cut(cuts: list[int], end: bytes) -> None:
    whole = (b": hello\n\n" + token('"choices":[') + token("é") + USAGE + DONE).replace(b"\n", end)
    stream = Stream()
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for begin, stop in itertools.pairwise(edges):
        stream.feed(whole[begin:stop], 1.0)
    assert (stream.events, stream.output_tokens, stream.done) == (2, 3, True)
    assert stream.error is None


def test_the_text_of_an_answer_is_not_taken_for_its_usage_or_for_an_error() -> None:
    stream = Stream()
    for text in ('"completion_tokens":99', '{"error":{"type":"x"}}', "data: [DONE]"):
        stream.feed(token(text), 1.0)
    assert (stream.events, stream.output_tokens, stream.error, stream.done) == (
        3,
        None,
        None,
        False,
    )


def test_usage_within_the_last_tokens_event_counts_both() -> None:
    stream = Stream()
    stream.feed(event({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}), 2.0)
    assert (stream.events, stream.output_tokens, stream.first_at) == (1, 1, 2.0)


def test_spaces_within_json_change_nothing() -> None:
    stream = Stream()
    stream.feed(b'data:{ "choices" : [ {"text": "a"} ] }\n\n', 2.0)
    stream.feed(b'data:{ "choices" : [ ], "usage" : {"completion_tokens" : 1} }\n\n', 3.0)
    assert (stream.events, stream.output_tokens, stream.last_at) == (1, 1, 2.0)


@pytest.mark.parametrize(
    ("content", "reason", "away"),
    [
        ({"error": {"type": "server_error", "code": "c"}}, "server_error/c", False),
        ({"error": {"type": "rate_limit_error"}}, "rate_limit_error", True),
        ({"error": {"type": "service_unavailable_error"}}, "service_unavailable_error", True),
        ({"object": "error", "type": "BadRequest", "code": 400}, "BadRequest", False),
        ({"error": "broken"}, "an error event", False),
    ],
)
def test_an_error_event_is_kept(content: Any, reason: str, away: bool) -> None:
    stream = Stream()
    stream.feed(token() + event(content) + DONE, 1.0)
    assert stream.error is not None
    assert (stream.error.reason, stream.error.turned_away) == (reason, away)


@pytest.mark.parametrize("line", [b"data: {broken\n\n", b"data: [1]\n\n"])
def test_what_is_no_event_is_an_error(line: bytes) -> None:
    stream = Stream()
    stream.feed(line, 1.0)
    assert stream.error is not None
    assert stream.error.reason == "not an event"


def test_a_last_line_that_nothing_ends_counts() -> None:
    stream = Stream()
    stream.feed(token() + b"data: [DONE]", 1.0)
    assert not stream.done
    stream.close(1.0)
    assert stream.done


@pytest.mark.parametrize("usage", [{"completion_tokens": "3"}, {"completion_tokens": True}, {}])
def test_what_is_no_count_is_not_taken_for_one(usage: Any) -> None:
    stream = Stream()
    stream.feed(event({"choices": [], "usage": usage}), 1.0)
    assert stream.output_tokens is None

"""The verdict condemns what no client may see, and nothing else: made-up records of runs."""

from dataclasses import replace
from typing import Any

import pytest

from deployments.openai.errors import internal, no_replica, out_of_time, queue_full
from deployments.patience import MAX_LOSSES
from tests.chaos.attempt import Attempt
from tests.chaos.faults import Fault, Kind
from tests.chaos.oracle import Answer
from tests.chaos.verdict import AWAY_S, CUT_WITHIN_S, LATE_S, NO_HAPROXY_S, complaint

TOLD = {"tokens": ["you"], "token_logprobs": [-0.5]}
RIGHT = Answer(("héllo", "you"), ("stop", "length"), 9, (None, TOLD))
BEGAN, ENDED = 100.0, 110.0
BROKEN = "ReadError"


def stream(**changes: Any) -> Attempt:
    """A stream that brought all, with some things changed."""
    right = Attempt("a", 0, True, BEGAN, ENDED, 200, {}, done=True, tokens=RIGHT.tokens)
    right.texts, right.finishes = dict(enumerate(RIGHT.texts)), dict(enumerate(RIGHT.finishes))
    right.logprobs = {1: TOLD}
    return replace(right, **changes)


def refusal(status: int, **changes: Any) -> Attempt:
    """A refusal as it ought to be, with some things changed."""
    errors = {429: queue_full(1.5), 504: out_of_time("end")}
    error = errors.get(status, no_replica(1.5))
    headers = {name.lower(): value for name, value in error.headers().items()}
    right = Attempt("a", 0, False, BEGAN, ENDED, status, headers, error=error.envelope()["error"])
    return replace(right, **changes)


def event(code: str) -> dict[str, Any]:
    """An error event's inside."""
    errors = {
        "no_replica": no_replica(1.0),
        "queue_full": queue_full(1.0),
        "deadline_exceeded": out_of_time("end"),
    }
    return dict(errors.get(code, internal()).envelope()["error"])


def losses(count: int, *, before: float = ENDED) -> list[Fault]:
    return [Fault(before - 1 - i, Kind.KILL_REPLICA, i) for i in range(count)]


@pytest.mark.parametrize(
    "attempt",
    [
        stream(),
        stream(stream=False, done=False),
        refusal(429),
        refusal(503),
        # It may have heard only the beginning when it left, or when nobody served any more.
        stream(left=True, done=False, texts={0: "hé"}, finishes={}, tokens=None),
        stream(error=event("no_replica"), texts={0: "hé"}, finishes={}, tokens=None),
        stream(limit_s=9.9),
        stream(limit_s=9.9, error=event("deadline_exceeded"), texts={0: "hé"}, finishes={}),
        refusal(504, limit_s=9.9),
    ],
)
def test_what_clients_may_see(attempt: Attempt) -> None:
    assert complaint(attempt, RIGHT, []) is None


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (stream(texts={0: "hélo", 1: "you"}), "wrong text"),
        (stream(texts={0: "hélllo", 1: "you"}), "wrong text"),
        (stream(left=True, texts={0: "x"}), "wrong text"),
        (stream(broken=BROKEN, texts={0: "x"}), "wrong text"),
        (stream(texts={0: "héllo", 1: "you", 2: ""}), "not asked for"),
        (stream(texts={0: "héll", 1: "you"}), "ends early"),
        (stream(texts={1: "you"}), "ends early"),
        (stream(finishes={0: "length", 1: "length"}), "finish reasons"),
        (stream(finishes={0: "stop"}), "finish reasons"),
        (stream(logprobs={1: TOLD | {"token_logprobs": [-0.25]}}), "wrong token_logprobs"),
        (stream(logprobs={0: TOLD, 1: TOLD}), "wrong tokens"),
        (stream(logprobs={1: TOLD | {"token_logprobs": []}}), "probabilities end early"),
        (stream(logprobs={}), "probabilities end early"),
        (stream(tokens=10), "10 tokens, not 9"),
        (stream(tokens=None), "None tokens"),
        (stream(done=False), "without [DONE]"),
        (stream(done=False, error=event("no_replica")), "without [DONE]"),
        (stream(error=event("internal_error")), "error: "),
        (stream(error=event("queue_full")), "error: "),
        (stream(error={"code": "no_replica"}), "not the envelope"),
        (stream(hung=True), "hung"),
        (stream(error=event("deadline_exceeded")), "before its time limit"),
        (stream(error=event("deadline_exceeded"), limit_s=10.5), "before its time limit"),
        (stream(limit_s=0.5, ended=BEGAN + 0.5 + LATE_S + 1), "long after"),
        (refusal(504), "before its time limit"),
        (refusal(504, limit_s=9.9, error=refusal(503).error), "not the envelope"),
        (stream(broken=BROKEN), "broken: "),
        (refusal(500), "error: "),
        (refusal(502), "status 502"),
        (refusal(400), "status 400"),
        (refusal(429, headers={}), "without Retry-After"),
        (refusal(503, headers={"retry-after": "soon"}), "without Retry-After"),
        (refusal(429, error=None), "not the envelope"),
        (refusal(429, error=refusal(503).error), "not the envelope"),
        (Attempt("a", 0, False, BEGAN, ENDED), "status None"),
    ],
)
def test_what_no_client_may_see(attempt: Attempt, why: str) -> None:
    found = complaint(attempt, RIGHT, [])
    assert found is not None
    assert why in found


@pytest.mark.parametrize(
    ("fault", "excused"),
    [
        (Fault(ENDED - 0.1, Kind.KILL_GATEWAY, 1), True),
        (Fault(ENDED - CUT_WITHIN_S - 0.1, Kind.KILL_GATEWAY, 1), False),
        (Fault(ENDED + 0.1, Kind.KILL_GATEWAY, 1), False),
        (Fault(BEGAN - 0.1, Kind.KILL_GATEWAY, 1), False),
        (Fault(ENDED - 0.1, Kind.KILL_REPLICA, 1), False),
        (Fault(ENDED - 0.1, Kind.KILL_ROUTER, 1), False),
        (Fault(ENDED - 0.1, Kind.KILL_CONTROLLER, 1), False),
        (Fault(ENDED - 0.1, Kind.KILL_HAPROXY, 1), True),
        (Fault(ENDED - CUT_WITHIN_S - 0.1, Kind.KILL_HAPROXY, 1), False),
    ],
)
def test_only_the_death_of_what_holds_a_connection_breaks_it(fault: Fault, excused: bool) -> None:
    broken = stream(broken=BROKEN, done=False)
    assert (complaint(broken, RIGHT, [fault]) is None) is excused
    late = replace(broken, began=ENDED - 0.05)
    without_haproxy = fault.kind is Kind.KILL_HAPROXY
    assert (complaint(late, RIGHT, [fault]) is None) is without_haproxy
    later = replace(broken, began=fault.at + NO_HAPROXY_S + 0.1, ended=fault.at + NO_HAPROXY_S + 1)
    assert complaint(later, RIGHT, [fault]) is not None
    # It breaks connections; it is no excuse for anything else.
    assert complaint(refusal(500), RIGHT, [fault]) is not None
    assert complaint(stream(done=False), RIGHT, [fault]) is not None


@pytest.mark.parametrize("kind", [Kind.KILL_ROUTER, Kind.FREEZE_ROUTER, Kind.REDEPLOY])
def test_only_the_absence_of_the_router_makes_a_refusal_late(kind: Kind) -> None:
    late = stream(error=event("queue_full"), texts={}, finishes={}, tokens=None)
    assert complaint(late, RIGHT, [Fault(BEGAN - 1, kind, 1)]) is None
    assert complaint(late, RIGHT, [Fault(BEGAN - AWAY_S[kind] - 1, kind, 1)]) is not None
    assert complaint(late, RIGHT, [Fault(BEGAN + 1, Kind.KILL_REPLICA, 1)]) is not None


@pytest.mark.parametrize("failed", [refusal(500), stream(error=event("internal_error"))])
def test_a_request_is_given_up_when_one_replica_after_the_other_died(failed: Attempt) -> None:
    assert complaint(failed, RIGHT, losses(MAX_LOSSES + 1)) is None
    assert complaint(failed, RIGHT, losses(MAX_LOSSES)) is not None
    assert complaint(failed, RIGHT, losses(MAX_LOSSES + 1, before=BEGAN)) is not None


def test_a_stream_is_read_as_it_was_sent() -> None:
    attempt = Attempt("a", 0, True, BEGAN, status=200)
    choice = '{"index": 0, "text": "%s", "finish_reason": %s, "logprobs": {"tokens": ["é"]}}'
    chunk = f'data: {{"choices": [{choice}], "usage": null}}'
    assert not attempt.read_line(": keep-alive")
    assert not attempt.read_line("")
    assert attempt.read_line(chunk % ("hé", "null"))
    assert attempt.read_line(chunk % ("llo", '"stop"'))
    assert attempt.read_line('data: {"choices": [], "usage": {"completion_tokens": 5}}')
    assert not attempt.complete
    attempt.read_line("data: [DONE]")
    assert attempt.complete
    right = Answer(("héllo",), ("stop",), 5, ({"tokens": ["é", "é"]},))
    assert complaint(attempt, right, []) is None
    attempt.read_line(chunk % ("more", "null"))
    assert complaint(attempt, right, []) is not None


def test_what_is_not_json_is_no_answer() -> None:
    attempt = Attempt("a", 0, False, BEGAN, status=200)
    attempt.read_answer(b"Internal Server Error")
    assert complaint(attempt, RIGHT, []) is not None

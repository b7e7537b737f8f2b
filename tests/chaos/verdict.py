"""The verdict: which endings a client may see, given what was done to the server.

Pure functions of the record, so that they can be shown to condemn what they should.
"""

from collections.abc import Mapping, Sequence

from deployments.patience import MAX_LOSSES
from tests.chaos.attempt import Attempt
from tests.chaos.faults import Fault, Kind
from tests.chaos.oracle import Answer

CUT_WITHIN_S = 3.0
"""A connection through a gateway breaks within so long of the gateway's death."""

AWAY_S = {Kind.KILL_ROUTER: 15.0, Kind.FREEZE_ROUTER: 15.0, Kind.REDEPLOY: 60.0}
"""A router that was killed, frozen or replaced answers again after so long at most."""

NO_HAPROXY_S = 30.0
"""There are connections again so long after the death of HAProxy at most."""

LATE_S = 15.0
"""An answer is over so long after its time limit at most, a gateway's frost included."""

_ENVELOPE = {"message", "type", "param", "code"}
_TYPES = {429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error"}


def complaint(attempt: Attempt, answer: Answer, faults: Sequence[Fault]) -> str | None:
    """Say what is wrong with how an attempt ended, or None.

    Args:
        attempt: what the client saw.
        answer: what it would have got in calm.
        faults: all that was done to the server.
    """
    if wrong := _wrong_text(attempt, answer):
        return wrong
    if attempt.left:
        return None
    if attempt.hung:
        return "hung"
    if attempt.broken is not None:
        return None if _front_died(attempt, faults) else f"broken: {attempt.broken}"
    if attempt.limit_s is not None and _took_s(attempt) > attempt.limit_s + LATE_S:
        return "over long after its time limit"
    if attempt.status == 200:
        return _ending(attempt, answer, faults)
    return _refusal(attempt, faults)


def _wrong_text(attempt: Attempt, answer: Answer) -> str | None:
    """What has come must be right as far as it goes."""
    for index, text in attempt.texts.items():
        if index >= len(answer.texts):
            return f"choice {index} was not asked for"
        if not answer.texts[index].startswith(text):
            return f"wrong text of choice {index}: {_difference(answer.texts[index], text)}"
    for index, came in attempt.logprobs.items():
        right = answer.logprobs[index] or {}
        for name, values in came.items():
            if right.get(name, [])[: len(values)] != values:
                return f"wrong {name} of choice {index}"
    return None


def _ending(attempt: Attempt, answer: Answer, faults: Sequence[Fault]) -> str | None:
    if attempt.stream and not attempt.done:
        return "a stream without [DONE]"
    if attempt.error is not None:
        if attempt.expired:
            return _expiry(attempt)
        if attempt.error.get("code") == "no_replica":
            return _envelope(attempt.error, 503)
        if attempt.error.get("code") == "queue_full" and _router_was_away(attempt, faults):
            return _envelope(attempt.error, 429)
        return _failure(attempt, faults)
    if _in_order(attempt.texts) != answer.texts:
        return "the text ends early"
    if _in_order(attempt.finishes) != answer.finishes:
        return f"finish reasons {attempt.finishes}, not {answer.finishes}"
    if [attempt.logprobs.get(i) for i in range(len(answer.texts))] != list(answer.logprobs):
        return "the log-probabilities end early"
    if attempt.tokens != answer.tokens:
        return f"{attempt.tokens} tokens, not {answer.tokens}"
    return None


def _refusal(attempt: Attempt, faults: Sequence[Fault]) -> str | None:
    if attempt.status == 500:
        return _failure(attempt, faults)
    if attempt.status == 504:
        return _expiry(attempt)
    if attempt.status not in _TYPES:
        return f"status {attempt.status}: {attempt.error}"
    if not attempt.headers.get("retry-after", "").isdecimal():
        return f"a {attempt.status} without Retry-After"
    return _envelope(attempt.error or {}, attempt.status)


def _expiry(attempt: Attempt) -> str | None:
    if attempt.limit_s is None or _took_s(attempt) < attempt.limit_s:
        return f"given up before its time limit of {attempt.limit_s} s"
    return _envelope(attempt.error or {}, 504)


def _envelope(error: Mapping[str, object], status: int) -> str | None:
    if set(error) != _ENVELOPE or error["type"] != _TYPES[status]:
        return f"not the envelope of a {status}: {error}"
    return None


def _failure(attempt: Attempt, faults: Sequence[Fault]) -> str | None:
    """A request under which one replica after the other died is given up, and only that."""
    losses = (Kind.KILL_REPLICA, Kind.FREEZE_REPLICA)
    lost = [f for f in faults if f.kind in losses and attempt.began < f.at < attempt.ended]
    return None if len(lost) > MAX_LOSSES else f"error: {attempt.error}"


def _front_died(attempt: Attempt, faults: Sequence[Fault]) -> bool:
    """Whether a process went that held the connection, or would have taken it."""
    for fault in faults:
        if not attempt.began - NO_HAPROXY_S < fault.at < attempt.ended:
            continue
        if fault.kind is Kind.KILL_HAPROXY and fault.at < attempt.began:
            return True
        cut = attempt.began < fault.at and attempt.ended - CUT_WITHIN_S < fault.at
        if fault.kind in (Kind.KILL_HAPROXY, Kind.KILL_GATEWAY) and cut:
            return True
    return False


def _router_was_away(attempt: Attempt, faults: Sequence[Fault]) -> bool:
    """Who waited for the router had its 200 before the new one could say that it is full."""
    return any(
        fault.kind in AWAY_S and attempt.began - AWAY_S[fault.kind] < fault.at < attempt.ended
        for fault in faults
    )


def _took_s(attempt: Attempt) -> float:
    return attempt.ended - attempt.began


def _in_order(by_index: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(by_index[index] for index in sorted(by_index))


def _difference(right: str, came: str) -> str:
    same = next((i for i, (a, b) in enumerate(zip(right, came, strict=False)) if a != b), None)
    at = min(len(right), len(came)) if same is None else same
    return f"after {at} characters {came[at : at + 20]!r}, not {right[at : at + 20]!r}"

"""One choice scores the prompt; all tell it, whichever begins first."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployments.messages import Event, Refusal, RefusalKind
from deployments.order import Failed, Refused
from deployments.prompt_scores import PromptScores
from engine.submission import Detail, TokenLogprobs

SCORES = (None, TokenLogprobs(2, -1.5))
CHOICES = 3


def event(index: int, at: int, detail: Detail | None = None) -> Event:
    return (f"k{index}", (at,), str(at), "stop" if at == 2 else None, None, detail)


@given(st.permutations([index for index in range(CHOICES) for _ in range(3)]), st.booleans())
def test_in_whatever_order_they_come_each_is_whole_and_has_the_scores_once(
    order: list[int], detailed: bool
) -> None:
    came: list[tuple[int, Any]] = []
    scores = PromptScores(lambda index, event: came.append((index, event)))
    emits = [scores.emit(index, leads=index == 0) for index in range(CHOICES)]
    sent = [0] * CHOICES
    for index in order:
        own = (TokenLogprobs(sent[index], -1.0),)
        detail = Detail(logprobs=own) if detailed else None
        if index == 0 and sent[0] == 0:
            detail = Detail(logprobs=own, prompt_logprobs=SCORES)
        emits[index](event(index, sent[index], detail))
        sent[index] += 1
        # Nothing waits once the first has begun.
        assert len(came) == (sum(sent) if sent[0] else 0)
    for index in range(CHOICES):
        events = [event for at, event in came if at == index]
        assert [event[2] for event in events] == ["0", "1", "2"]
        told = [() if event[-1] is None else event[-1].prompt_logprobs for event in events]
        assert told == [SCORES, (), ()]
        if detailed:
            assert [event[-1].logprobs[0].token for event in events] == [0, 1, 2]


def test_what_ends_the_call_waits_for_nothing() -> None:
    came: list[tuple[int, Any]] = []
    scores = PromptScores(lambda index, event: came.append((index, event)))
    failed, refused = Failed("x"), Refused(Refusal(RefusalKind.EXPIRED))
    scores.emit(1, leads=False)(failed)
    scores.emit(0, leads=True)(refused)
    assert came == [(1, failed), (0, refused)]

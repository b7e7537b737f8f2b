"""What is said of a replay that was not as asked for."""

from collections import Counter
from typing import Any

import pytest
from yarl import URL

from experiments.loads.load import Arrival, Load
from experiments.replay.client import Tally
from experiments.replay.fleet import Fleet
from experiments.replay.manner import Manner
from experiments.replay.measured import Measured, measured_run, quantile
from experiments.replay.server import Server
from experiments.replay.verdict import verdict
from experiments.simulator.outcome import Outcome

LOAD = Load("hand", [Arrival(n, 100, 2) for n in range(100)])


def measured(sent: int = 100, **tally: Any) -> Measured:
    outcomes = [Outcome(n, n, 0, "", 100, status="ok") for n in range(sent)]
    server, fleet = Server("m", None, ""), Fleet(None, URL("http://a/"))  # type: ignore[arg-type]
    seen = Tally(**{"lateness_s": [0.001] * sent, "ended": Counter(ok=sent), **tally})
    run = measured_run("r", LOAD, URL("http://a/"), Manner(), server, fleet, seen, outcomes)
    return Measured(run, seen, server, sent)


def test_nothing_is_said_when_all_was_well() -> None:
    assert list(verdict(LOAD, measured())) == []
    assert list(verdict(LOAD, measured(lateness_s=[0.0] * 99 + [0.5]))) == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"lateness_s": [0.0] * 90 + [0.025] * 10}, "sent more than 25 ms after its time"),
        ({"sent": 40}, "40 of 100 requests were sent"),
        ({"short": 3}, "3 answers had fewer tokens"),
        ({"uncounted": 2}, "2 answers: events count"),
        ({"prompt_tokens": 120, "asked_tokens": 100}, "counts 120 tokens of prompts"),
    ],
)
def test_what_was_not_as_asked_for_is_said(what: Any, said: str) -> None:
    (line,) = verdict(LOAD, measured(**what))
    assert said in line


def test_reasons_are_counted_with_an_example() -> None:
    one = measured(examples={"full": "no room"})
    for outcome in one.run.outcomes[:30]:
        outcome.status, outcome.reason = "refused", "full"
    assert list(verdict(LOAD, one)) == ["30 times full: no room"]


def test_seconds_last_until_the_last_answers_end() -> None:
    one = measured()
    assert one.run.seconds == 99
    one.run.outcomes[3].last_token_at = 120.0
    again = measured_run(
        *("r", LOAD, URL("http://a/"), Manner(), one.server),
        *(Fleet(None, URL("http://a/")), one.tally, one.run.outcomes),  # type: ignore[arg-type]
    )
    assert again.seconds == 120


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.75, 3), (0.99, 4), (1.0, 4), (0.01, 1)])
def test_a_quantile_is_a_value_that_was(share: float, value: float) -> None:
    assert quantile([1, 2, 3, 4], share) == value
    assert quantile([], share) == 0

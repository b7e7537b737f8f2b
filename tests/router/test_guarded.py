"""Whatever a policy answers, nothing breaks, nothing is lost and nothing hangs."""

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from router.guarded import Guarded
from router.policy import Fleet
from router.ticket import Ticket
from tests.router.fake_cluster import FakeReplica, make_core, ticket, where
from tests.router.test_core_properties import RouterMachine


class Answers:
    """Answers what it is told to."""

    def __init__(self, answer: Callable[[Ticket, Fleet], Any]) -> None:
        self.answer = answer

    def choose(self, ticket: Ticket, fleet: Fleet) -> str | None:
        answered: str | None = self.answer(ticket, fleet)
        return answered


def last_that_takes(ticket: Ticket, fleet: Fleet) -> str | None:
    able = [name for name in fleet.replicas if fleet.takes(name, ticket)]
    return able[-1] if able else None


WRONG: dict[str, tuple[Callable[[Ticket, Fleet], Any], str]] = {
    "unknown": (lambda *_: "nowhere", "chose 'nowhere', which does not take the ticket"),
    "no name": (lambda *_: ["a"], r"chose \['a'\], which does not take the ticket"),
    "full": (lambda *_: "full", "chose 'full', which does not take the ticket"),
    "nobody": (lambda *_: None, "chose no replica, although 'a' takes the ticket"),
    "raises": (lambda *_: 1 / 0, r"raised ZeroDivisionError in line \d+: division by zero"),
    "leaves": (lambda *_: sys.exit(3), r"raised SystemExit in line \d+: 3"),
    "asks wrongly": (
        lambda _, fleet: fleet.free_blocks("x"),
        r"raised KeyError in line \d+: 'x'",
    ),
}


@pytest.mark.parametrize(("answer", "mistake"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_told_and_the_freest_replica_taken(answer: Any, mistake: str) -> None:
    told: list[str] = []
    full = FakeReplica("full", total=5, max_seqs=1, leaving=True)
    policy = Guarded(Answers(answer), told.append)
    core = make_core(FakeReplica("a", total=100), FakeReplica("b", 90), full, placement=policy)
    assert where(core.acquire(ticket("t", 10))) == {"t": "a"}
    assert len(told) == 1
    assert re.fullmatch(mistake, told[0])


def test_a_right_answer_is_followed_and_nothing_said() -> None:
    told: list[str] = []
    replicas = [FakeReplica(name, total) for name, total in (("a", 100), ("b", 90), ("c", 10))]
    core = make_core(*replicas, placement=Guarded(Answers(last_that_takes), told.append))
    placed = where(core.acquire(ticket("small", 8))) | where(core.acquire(ticket("large", 20)))
    assert placed == {"small": "c", "large": "b"}
    assert told == []


def test_none_is_right_when_nobody_takes_it() -> None:
    told: list[str] = []
    policy = Guarded(Answers(lambda *_: None), told.append)
    core = make_core(FakeReplica("a", leaving=True), placement=policy)
    assert core.acquire(ticket("t")) == []
    assert told == []


def test_what_the_listener_raises_ends_the_turn_with_nothing_charged() -> None:
    """A simulation stops at a mistake instead of going on with another policy than it says."""

    def stop(mistake: str) -> None:
        raise RuntimeError(mistake)

    core = make_core(FakeReplica("a"), placement=Guarded(Answers(lambda *_: "b"), stop))
    with pytest.raises(RuntimeError, match="chose 'b'"):
        core.acquire(ticket("t"))
    assert core.gauges().replicas[0].grants == 0


class RogueMachine(RouterMachine):
    """All that holds of the router holds whatever the policy answers."""

    def start_router(self, start: dict[str, Any]) -> None:
        self.asked = 0
        super().start_router(start | {"policy": Guarded(Answers(self.ill_advise), lambda _: None)})

    def ill_advise(self, ticket: Ticket, fleet: Fleet) -> Any:
        self.asked += 1
        answers = [answer for answer, _ in WRONG.values()]
        answers.append(lambda ticket, fleet: fleet.freest(ticket))
        return answers[self.asked % len(answers)](ticket, fleet)


TestRogue = RogueMachine.TestCase
TestRogue.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)

"""Replicas that come and go, beside a plain model of what is hoped for meanwhile."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.config import ServeConfig
from deployments.muster import Muster

EXPECTED = 3


@dataclass(frozen=True)
class Replica:
    leaving: bool


class Hope:
    def __init__(self) -> None:
        self.alive = False

    def begin(self) -> None:
        assert not self.alive, "what lasts already must not begin anew"
        self.alive = True

    def fulfil(self) -> None:
        self.alive = False


class Stage:
    """A muster and all that it works on."""

    def __init__(self, **settings: Any) -> None:
        self.expecting, self.waits, self.changes = EXPECTED, False, 0
        self.settled: list[str] = []
        self.hope = Hope()
        config = ServeConfig.of(settings)
        self.muster: Muster[Replica] = Muster(
            config, EXPECTED, self, self.hope, lambda: self.waits, self.settle, self.changed
        )
        self.muster.start()

    def expect(self, replicas: int) -> list[Any]:
        self.expecting = replicas
        return [f"expect {replicas}"]

    def settle(self, decisions: Iterable[Any]) -> None:
        self.settled += decisions

    def changed(self) -> None:
        self.changes += 1

    def expire(self) -> None:
        self.hope.alive = False
        self.muster.despair()


@dataclass(frozen=True)
class Plain:
    """What is to be, without a muster: the names, who of them leaves, and whether there is hope.

    ``given_up``: the last hope has ended in vain, and nothing has come of it since.
    """

    there: dict[str, bool]
    hope: bool
    given_up: bool = False
    changes: int = 0

    def hoping(self) -> "Plain":
        return replace(self, hope=True, given_up=self.given_up and self.hope)

    def after(self, event: tuple[str, str], waits: bool, autoscaled: bool) -> "Plain":
        what, name = event
        if what == "ask":
            return self.hoping() if autoscaled and all(self.there.values()) else self
        if what == "expire":
            return replace(self, hope=False, given_up=True) if self.hope else self
        if what == "lose":
            left = {one: leaves for one, leaves in self.there.items() if one != name}
            lost = replace(self, there=left, changes=self.changes + (name in self.there))
            return lost.hoping() if not left and (waits or not autoscaled) else lost
        known = replace(self, there={**self.there, name: what == "leave"})
        if name in self.there:
            return known
        return replace(known, hope=False, given_up=False, changes=self.changes + 1)


EVENTS = st.tuples(
    st.sampled_from(["ask", "meet", "leave", "lose", "expire"]), st.sampled_from("abc")
)


@given(
    st.lists(st.tuples(EVENTS, st.booleans()), max_size=30),
    st.sampled_from([("off", 1), ("blocks", 1), ("blocks", 0)]),
)
def test_replicas_come_and_go_as_a_plain_model_says(
    events: list[tuple[tuple[str, str], bool]], scaling: tuple[str, int]
) -> None:
    autoscaling, fewest = scaling
    stage = Stage(autoscaling=autoscaling, min_replicas=fewest)
    plain = Plain({}, hope=autoscaling == "off" or fewest > 0)
    assert stage.muster.may_sleep == (not plain.hope)
    for event, waits in events:
        what, name = event
        stage.waits = waits
        if what == "ask":
            stage.muster.asked()
        elif what == "lose":
            stage.muster.lose(name, [f"lost {name}"])
            assert stage.settled[-1] == f"lost {name}"
        elif what == "expire" and stage.hope.alive:
            stage.expire()
        elif what in ("meet", "leave"):
            stage.muster.meet(name, Replica(what == "leave"))
        plain = plain.after(event, waits, autoscaling != "off")
        assert {one: known.leaving for one, known in stage.muster.replicas.items()} == plain.there
        assert stage.hope.alive == plain.hope
        assert stage.expecting == (0 if plain.given_up else EXPECTED)
        assert stage.changes == plain.changes


@pytest.mark.parametrize("waits", [True, False])
def test_the_last_one_of_a_fixed_fleet_is_always_missed(waits: bool) -> None:
    stage = Stage()
    stage.muster.meet("a", Replica(False))
    stage.waits = waits
    stage.muster.lose("a", [])
    assert stage.hope.alive


def test_whoever_is_told_that_there_is_hope_again_is_told_before_its_decisions_count() -> None:
    """Those that were lost with the last replica must not be refused for want of one."""
    stage = Stage()
    stage.expire()
    stage.settled.clear()
    stage.muster.lose("a", ["lost a"])
    assert stage.settled == [f"expect {EXPECTED}", "lost a"]

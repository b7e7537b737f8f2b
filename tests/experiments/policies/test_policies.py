"""Policies to compare ours with: each chooses as its name says, and breaks nothing."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from experiments.policies import SPECS, spec_of
from experiments.policies.least_requests import LeastRequests
from experiments.policies.power_of_two import PowerOfTwo
from experiments.policies.round_robin import RoundRobin
from router.policy import Fleet, PlacementPolicy
from router.ticket import Ticket
from tests.router.fake_cluster import FakeReplica, fill, make_core, ticket, where
from tests.router.test_core_properties import RouterMachine


def placed(policy: PlacementPolicy, sizes: list[int], *replicas: FakeReplica) -> str:
    """The replicas that tickets of these sizes go to, in order."""
    core = make_core(*replicas, placement=policy)
    return "".join(
        where(core.acquire(ticket(str(n), size)))[str(n)] for n, size in enumerate(sizes)
    )


def fleet(names: str = "abc", total: int = 100) -> list[FakeReplica]:
    return [FakeReplica(name, total) for name in names]


def test_round_robin_takes_turns_whatever_is_free() -> None:
    assert placed(RoundRobin(), [30, 1, 1, 1, 1, 1, 1], *fleet()) == "abcabca"


def test_round_robin_passes_over_who_has_no_room_and_goes_on_after_whom_it_took() -> None:
    replicas = [FakeReplica("a"), FakeReplica("b", 10), FakeReplica("c"), FakeReplica("d")]
    assert placed(RoundRobin(), [1, 20, 1, 1, 20, 20], *replicas) == "acdacd"


def test_round_robin_goes_on_when_replicas_come_and_go() -> None:
    core = make_core(*fleet("abcd"), placement=RoundRobin())
    for n in range(4):
        core.acquire(ticket(str(n)))
    core.acquire(ticket("4"))
    for name in "cd":
        core.lost(name)
    assert "".join(where(core.acquire(ticket(f"x{n}")))[f"x{n}"] for n in range(4)) == "baba"


def test_least_requests_counts_requests_and_not_blocks() -> None:
    assert placed(LeastRequests(), [50, 1, 1, 1, 1, 1], *fleet()) == "abcbca"


@pytest.mark.parametrize("policy", [RoundRobin(), LeastRequests(), PowerOfTwo(Random(0))])
def test_nothing_waits_on_one_replica_while_it_fits_on_another(policy: PlacementPolicy) -> None:
    """Each would choose b for the last, which b takes beyond what fits."""
    assert placed(policy, [1, 25, 20, 20], FakeReplica("a", 100), FakeReplica("b", 30)) == "abaa"


def test_power_of_two_spreads_and_is_the_same_for_a_seed() -> None:
    replicas = [f"r{n:02}" for n in range(50)]

    def spread(seed: int) -> list[str]:
        core = make_core(
            *(FakeReplica(n, 1000) for n in replicas), placement=PowerOfTwo(Random(seed))
        )
        return [where(core.acquire(ticket(str(n), 1)))[str(n)] for n in range(500)]

    assert spread(1) == spread(1) != spread(2)
    counts = Counter(spread(1))
    # One random choice would give some replica about 20 of 500, two give 12 or 13.
    assert max(counts.values()) <= 14
    assert len(counts) == 50


def test_power_of_two_takes_the_only_one_that_has_room() -> None:
    replicas = [*fleet("abcdefghij", 5), FakeReplica("z", 100)]
    assert placed(PowerOfTwo(Random(0)), [20] * 4, *replicas) == "zzzz"


def test_who_is_full_waits_and_is_placed_when_there_is_room() -> None:
    for policy in (RoundRobin(), LeastRequests(), PowerOfTwo(Random(0))):
        core = make_core(*fleet(), placement=policy)
        first, *_ = fill(core)
        assert core.acquire(ticket("late", 50)) == []
        holder = core._ledger.holder(first)
        assert where(core.release(first, finished=True)) == {"late": holder}


def test_short_names_are_those_of_files() -> None:
    for name, spec in SPECS.items():
        module, _, _ = spec.partition(":")
        assert module == f"experiments.policies.{name}"
        assert spec_of(name) == spec
    assert spec_of("./mine.py:Mine") == "./mine.py:Mine"


class PoliciesMachine(RouterMachine):
    """What must be true of the router is true with each of them, and none names a suspect."""

    def start_router(self, start: dict[str, Any]) -> None:
        policies = (RoundRobin(), LeastRequests(), PowerOfTwo(Random(0)))
        super().start_router(start | {"policy": policies[(self.lookahead + self.joined) % 3]})

    def check_choice(self, ticket: Ticket, chosen: str | None) -> None:
        super().check_choice(ticket, chosen)
        ledger: Fleet = self.core._ledger
        freest = ledger.freest(ticket)
        if chosen is not None and freest is not None:
            assert ledger.level(chosen, ticket) == ledger.level(freest, ticket)


TestPolicies = PoliciesMachine.TestCase
TestPolicies.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)

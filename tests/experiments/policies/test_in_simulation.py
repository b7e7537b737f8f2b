"""Policies from files decide in a simulation as they do in a server."""

from pathlib import Path

import pytest

from deployments.autoscaling import PolicyError
from experiments.policies import SPECS
from tests.experiments.simulator.runs import poisson, run

LOAD = poisson(rate=8.0, seconds=10.0)


@pytest.mark.parametrize("name", SPECS)
def test_each_serves_a_load_and_does_so_twice(name: str) -> None:
    runs = [run(LOAD, replicas=3, placement=SPECS[name]) for _ in range(2)]
    assert runs[0] == runs[1]
    assert {outcome.status for outcome in runs[0].outcomes} == {"ok"}
    others = run(LOAD, replicas=3)
    assert [one.replica for one in runs[0].outcomes] != [one.replica for one in others.outcomes]


def test_random_choices_are_those_of_the_seed() -> None:
    spec = SPECS["power_of_two"]
    first, second = (run(LOAD, replicas=9, placement=spec, seed=seed) for seed in (1, 2))
    assert [one.replica for one in first.outcomes] != [one.replica for one in second.outcomes]


def test_a_mistake_ends_a_simulation_where_a_server_goes_on(tmp_path: Path) -> None:
    """A result that is not the policy's would be taken for it."""
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    def choose(self, ticket, fleet):\n        return 'nobody'\n")
    with pytest.raises(PolicyError, match=r"mine\.py:Mine chose 'nobody', which does not take"):
        run(LOAD, placement=f"{path}:Mine")


def test_an_own_policy_decides_how_many_replicas_there_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from deployments.autoscaling import Band\n"
        "def three(demand, target, settings):\n"
        "    return Band(3, 3)\n"
    )
    scaled = run(LOAD, autoscaling=f"{path}:three", scale_up_cooldown_s=1.0, start_s=1.0)
    assert max(sample.serving for sample in scaled.samples) == 3


@pytest.mark.parametrize("ends", ["1 / 0", "raise SystemExit(3)"])
def test_an_own_policy_that_fails_ends_a_simulation_with_its_line(
    tmp_path: Path, ends: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def mine(demand, target, settings):\n    {ends}\n")
    with pytest.raises(PolicyError, match=r"mine\.py:mine: \w+ in line 2: "):
        run(LOAD, autoscaling=f"{path}:mine")

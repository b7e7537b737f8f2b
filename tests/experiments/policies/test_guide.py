"""The files of the guide do what it says: in the loader, in a simulation and in a test."""

import re
import runpy
import shlex
from pathlib import Path
from random import Random

import pytest

from deployments.config import ServeConfig
from deployments.policy_source import with_policies
from experiments.loads.load import Arrival
from experiments.simulator.command import main
from experiments.simulator.outcome import Run
from tests.experiments.simulator.runs import load, poisson, run

PAGE = Path(__file__).parents[3] / "docs" / "experiments" / "your-own-policy.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

COMMANDS = re.findall(r"^\.venv/bin/tidegate simulate (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page has the reader save."""
    for block in BLOCKS:
        if named := re.match(r'"""(\w+\.py): ', block):
            (tmp_path / named[1]).write_text(block)
    assert {path.name for path in tmp_path.iterdir()} == {"packed.py", "ahead.py"}
    return tmp_path


def busy(run: Run) -> set[str]:
    return {outcome.replica for outcome in run.outcomes if outcome.replica}


def test_both_can_be_deployed(folder: Path) -> None:
    args = {"placement": f"{folder}/packed.py:Packed", "autoscaling": f"{folder}/ahead.py:Ahead"}
    assert with_policies(ServeConfig.of(args)).policies is not None


def test_packed_leaves_replicas_idle_that_others_would_use(folder: Path) -> None:
    light = poisson(rate=5.0, seconds=10.0)
    usual = run(light, replicas=4)
    packed = run(light, replicas=4, placement=f"{folder}/packed.py:Packed")
    assert all(outcome.status == "ok" for outcome in packed.outcomes)
    assert len(busy(packed)) < len(busy(usual)) == 4


def test_ahead_asks_for_replicas_earlier_on_a_load_that_grows(folder: Path) -> None:
    rng, at, arrivals = Random(0), 0.0, []
    while (at := at + rng.expovariate(0.5 + at / 4)) < 60.0:
        arrivals.append(Arrival(at, prompt_tokens=200, output_tokens=100))

    def two_wanted(policy: str) -> float:
        scaled = run(load(arrivals), autoscaling=policy, max_replicas=4, scale_up_cooldown_s=5.0)
        return next(sample.at for sample in scaled.samples if sample.wanted >= 2)

    assert two_wanted(f"{folder}/ahead.py:Ahead") < two_wanted("blocks")


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_simulate(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main([*shlex.split(command), "--seconds", "10"]) == 0
    table = capsys.readouterr().out
    named = [word.removeprefix("./") for word in command.split() if ".py:" in word]
    assert len(named) == 1
    assert named[0] in table


def test_the_test_of_the_page_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (last,) = [block for block in BLOCKS if "from packed import" in block]
    (folder / "test_it.py").write_text(last)
    runpy.run_path(str(folder / "test_it.py"))

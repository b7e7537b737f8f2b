"""Steps of a real engine are counted as what they are, and all sizes of them are made."""

import csv
import itertools
import json
import multiprocessing
import multiprocessing.dummy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.config import ServeConfig
from engine.engine_config import EngineConfig
from engine.request import InvalidParam
from experiments.loads.load import Arrival
from experiments.simulator import fit, measured_engines
from experiments.simulator.fitted import Fitted
from experiments.simulator.measured_engines import Measured
from experiments.simulator.simulation import simulate
from experiments.simulator.step_models import load_described
from experiments.simulator.step_plan import measure
from experiments.simulator.step_rig import StepRig
from tests.experiments.simulator.runs import load, scenario

Rig = Callable[[], StepRig]


@pytest.fixture(scope="module")
def config(tiny_model_dir: Path) -> EngineConfig:
    return EngineConfig(
        model=str(tiny_model_dir), max_num_seqs=5, max_batch_tokens=24, prefill_chunk=16,
        num_blocks=64, block_tokens=4, threads=1, kernels="torch",
    )  # fmt: skip


def ticks() -> Callable[[], float]:
    count = itertools.count()
    return lambda: float(next(count))


@pytest.fixture(scope="module")
def rig(config: EngineConfig) -> StepRig:
    return StepRig(config, 0, ticks())


def test_each_step_is_counted_as_what_it_computes(rig: StepRig) -> None:
    # Guards against: counting otherwise than the simulator, whose steps are priced by this.
    rig.drop_all()
    rig.submit(20, 3)
    rig.submit(7, 2)
    made = []
    while rig.unfinished:
        step = rig.step()
        made.append((step.prefill, step.pairs, step.decodes, step.context))
    assert made == [
        # 16 of the first's 20 tokens, and the second whole.
        (16 + 7, 16 * 17 // 2 + 7 * 8 // 2, 0, 0),
        # The first's last 4, which see 16 before them; the second decodes its eighth token.
        (4, 4 * 16 + 4 * 5 // 2, 1, 8),
        # The first's tokens 21 and 22.
        (0, 0, 1, 21),
        (0, 0, 1, 22),
    ]


def test_a_chunk_of_one_token_counts_as_a_decode(rig: StepRig) -> None:
    rig.drop_all()
    rig.submit(17, 1)
    first, last = rig.step(), rig.step()
    assert (first.prefill, first.decodes) == (16, 0)
    assert (last.prefill, last.pairs, last.decodes, last.context) == (0, 0, 1, 17)


class Noted:
    """Notes what is priced."""

    def __init__(self) -> None:
        self.work: list[tuple[int, int, int, int]] = []

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        self.work.append((prefill, pairs, decodes, context))
        return 0.01

    def copies(self, blocks: int) -> float:
        raise AssertionError(blocks)


@settings(max_examples=25, deadline=None)
@given(
    some=st.lists(
        st.tuples(st.sampled_from([1, 5, 16, 17, 24, 33]), st.integers(1, 7)),
        min_size=1,
        max_size=5,
    )
)
def test_the_simulator_counts_a_step_as_the_rig_does(
    rig: StepRig, some: list[tuple[int, int]]
) -> None:
    # Guards against: a step that is fitted as one thing and priced as another.
    rig.drop_all()
    rig.submit(*some[0])
    made = [rig.step()]  # whoever is the first does not wait for others
    for lengths in some[1:]:
        rig.submit(*lengths)
    while rig.unfinished:
        made.append(rig.step())
    config, noted = rig.config, Noted()
    fleet = scenario(
        replicas=1, network_s=0.0, gateway_s=0.0, report_interval_s=1e-9, scheduling_policy="fcfs",
        admission_preemption=0, max_passes=0, lookahead=100, max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_batch_tokens, prefill_chunk=config.prefill_chunk,
        num_blocks=config.num_blocks, block_size=config.block_tokens,
    )  # fmt: skip
    simulate(fleet, load([Arrival(0.0, *lengths) for lengths in some]), noted)
    assert noted.work == [(one.prefill, one.pairs, one.decodes, one.context) for one in made]


def test_only_the_engines_step_is_timed(rig: StepRig) -> None:
    # Guards against: the second scheduler's time in the measure.
    rig.drop_all()
    rig.submit(3, 1)
    assert rig.step().seconds == 1.0  # one tick of a clock that ticks when it is read


def test_an_engine_that_does_otherwise_is_noticed(
    rig: StepRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Guards against: steps whose work is made up, if the two should ever part.
    rig.drop_all()
    rig.submit(3, 4)
    monkeypatch.setattr(rig._engine, "step", lambda: None)
    with pytest.raises(RuntimeError, match="the engine served"):
        rig.step()
    monkeypatch.undo()
    rig.drop_all()


def test_all_levels_come_and_prompts_beside_them(rig: StepRig) -> None:
    rig.drop_all()
    episodes = measure(rig, 0.0, seed=3, clock=ticks())
    steps = [step for episode in episodes for step in episode]
    quiet = {step.decodes for step in steps if not step.prefill}
    assert {1, 2, 4, 5} <= quiet
    assert any(step.prefill and not step.decodes for step in steps)
    assert any(step.prefill and step.decodes for step in steps)
    assert rig.unfinished == 0


def test_a_model_comes_of_it(rig: StepRig, tmp_path: Path) -> None:
    rig.drop_all()
    measured = Measured(measure(rig, 20.0, seed=3, clock=ticks()), rig.info, 1e-5)
    model, about = fit.model_of([measured], ServeConfig(threads=1), seed=0)
    assert isinstance(model, Fitted)
    assert model.fixed == pytest.approx(1.0)  # every step took one tick
    assert about["median_error"] == pytest.approx(0.0, abs=1e-6)
    assert model.copies(2) == pytest.approx(2e-5)
    assert "| 1 decode, context 500 | 1e+03 ms |" in fit.table(model, about)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads be what processes are otherwise, each of which would load torch anew."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda how: multiprocessing.dummy)


@pytest.mark.usefixtures("in_threads")
def test_the_command_writes_a_model_and_its_steps(tiny_model_dir: Path, tmp_path: Path) -> None:
    # Guards against: engines of which only one is measured, or that do not wait for each other.
    out, steps = tmp_path / "fit.json", tmp_path / "steps.csv"
    small = ["--max-num-seqs", "4", "--num-blocks", "64", "--kernels", "torch", "--threads", "1"]
    given = [str(tiny_model_dir), "--out", str(out), "--steps", str(steps), "--seconds", "1"]
    assert fit.main([*given, "--replicas", "2", *small]) == 0
    about = json.loads(out.read_text())["about"]
    assert about["replicas_side_by_side"] == 2
    assert load_described(str(out)).what.startswith("fitted, fit.json: machine ")
    with steps.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["replica"] for row in rows} == {"0", "1"}
    assert len(rows) == about["steps"]
    work = [[(row["prefill"], row["pairs"]) for row in rows if row["replica"] == i] for i in "01"]
    assert work[0] != work[1]


@pytest.mark.usefixtures("in_threads")
def test_an_engine_that_cannot_be_built_says_why(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Guards against: the other one's "broken barrier" instead, or its waiting for ten minutes.
    def build(config: EngineConfig, seed: int, clock: Callable[[], float]) -> StepRig:
        wrong = replace(config, max_model_len=1 << 20)
        return StepRig(wrong if seed else config, seed, clock)

    monkeypatch.setattr(measured_engines, "StepRig", build)
    with pytest.raises(InvalidParam, match="max_model_len"):
        measured_engines.measure_engines(config, 2, 1.0, seed=0)


def test_a_model_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit.main([str(tmp_path), "--out", str(tmp_path / "x.json")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("tidegate simulate --fit: ")
    assert "no config.json" in said

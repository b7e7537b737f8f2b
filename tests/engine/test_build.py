"""engine.build: an engine from settings, or one clear line why not."""

import os
import re
from pathlib import Path
from typing import NoReturn

import pytest
from llguidance import LLMatcher

import engine.backend
from engine.backend import default_threads
from engine.build import EngineInfo, build_engine
from engine.engine_config import EngineConfig
from engine.model_info import ModelNotFound
from engine.native.library import NativeUnavailable
from engine.request import FinishReason, InvalidParam, SamplingParams
from engine.submission import Delta, StepReport, Submission
from tests.engine.rig import Inbox


def build(folder: Path, **settings: object) -> EngineInfo:
    config = EngineConfig(model=str(folder), **{"threads": 1, **settings})  # type: ignore[arg-type]
    return build_engine(config, lambda report: None)[1]


def test_a_built_engine_generates(tiny_model_dir: Path) -> None:
    reports: list[StepReport] = []
    config = EngineConfig(model=str(tiny_model_dir), num_blocks=8, threads=1)
    engine, info = build_engine(config, reports.append)
    assert (info.total_blocks, info.block_tokens, info.max_model_len) == (8, 16, 128)
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    engine.submit(Submission("a", (5, 6, 7), params))
    while engine.keys():
        engine.step()
    assert sum(len(delta.tokens) for report in reports for delta in report.deltas) == 3


@pytest.mark.parametrize(("settings", "found"), [({}, 16), ({"prefix_cache": False}, 0)])
def test_an_engine_has_a_prefix_cache_unless_told_otherwise(
    tiny_model_dir: Path, settings: dict[str, bool], found: int
) -> None:
    inbox = Inbox()
    config = EngineConfig(model=str(tiny_model_dir), num_blocks=8, threads=1, **settings)
    engine, _ = build_engine(config, inbox)
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    for key in "ab":
        engine.submit(Submission(key, tuple(range(5, 25)), params))
        while engine.keys():
            engine.step()
    assert inbox.tokens("a") == inbox.tokens("b")
    assert inbox.details("b")[0].cached_tokens == found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_built_engine_keeps_answers_to_their_grammars(
    tiny_model_dir: Path, temperature: float
) -> None:
    """With random weights: preempted, moved, and beside one that is free."""
    grammar = LLMatcher.grammar_from_regex(r"(yes|no|maybe), [0-9]{4}!")
    inbox = Inbox()
    config = EngineConfig(
        model=str(tiny_model_dir), num_blocks=8, threads=1, max_num_seqs=1, admission_preemption=2
    )
    engine, _ = build_engine(config, inbox)
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=4, grammar=grammar)
    free = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)

    def run(steps: int = 1000) -> None:
        while engine.keys() and steps:
            engine.step()
            steps -= 1

    engine.submit(Submission("whole", (5, 6, 7), params))
    run()
    said, tokens = inbox.text("whole"), inbox.tokens("whole")
    assert re.fullmatch(r"(yes|no|maybe), \d{4}!", said)
    assert inbox.of("whole")[-1].finish is FinishReason.STOP
    assert len(tokens) == len(said), "no end token is needed where nothing else may follow"
    for made in (1, 5):
        engine.submit(Submission(f"{made}", (5, 6, 7), params, generated=tuple(tokens[:made])))
        run(steps=2)
        engine.submit(Submission(f"urgent{made}", (5, 6, 7), free, priority=9))
        run()
        assert inbox.tokens(f"{made}") == tokens[made:]
    assert engine.stats().admission_preemptions == 2


def test_a_built_engine_refuses_what_is_no_grammar(tiny_model_dir: Path) -> None:
    config = EngineConfig(model=str(tiny_model_dir), num_blocks=8, threads=1)
    engine, _ = build_engine(config, lambda report: None)
    with pytest.raises(InvalidParam, match=r"^grammar must be"):
        engine.submit(Submission("a", (5, 6), SamplingParams(grammar="{")))
    assert engine.keys() == ()


def test_swapping_reaches_the_engine(tiny_model_dir: Path) -> None:
    """Set and not wired, what is preempted is computed again, or goes on from others' blocks."""
    said: list[list[Delta]] = []
    for num_blocks, swap_gib in ((12, 0.0), (6, 0.001)):
        reports: list[StepReport] = []
        config = EngineConfig(
            model=str(tiny_model_dir),
            num_blocks=num_blocks,
            block_tokens=4,
            threads=1,
            prefix_cache=False,
            swap_gib=swap_gib,
            debug=True,
        )
        engine, _ = build_engine(config, reports.append)
        for i in range(2):
            params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=1)
            engine.submit(Submission(str(i), tuple(range(3 + i, 13 + i)), params))
        while engine.keys():
            engine.step()
        said.append([delta for report in reports for delta in report.deltas])
    stats = engine.stats()
    assert (stats.preemptions, stats.recomputed_tokens) == (1, 0)
    assert stats.restored_tokens > 0
    for key in "01":
        roomy, tight = (
            [told for d in deltas if d.key == key and d.detail for told in d.detail.logprobs]
            for deltas in said
        )
        assert roomy == tight
        assert len(roomy) == 10


def test_admission_preemption_reaches_the_scheduler(tiny_model_dir: Path) -> None:
    """Off, or bounded by another number than was set, an urgent request waits for ever."""
    order: list[str] = []

    def note(report: StepReport) -> None:
        order.extend(delta.key for delta in report.deltas if delta.finish is not None)

    config = EngineConfig(
        model=str(tiny_model_dir),
        num_blocks=8,
        max_num_seqs=1,
        threads=1,
        admission_preemption=2,
        max_admission_preemptions=1,
    )
    engine, _ = build_engine(config, note)
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    engine.submit(Submission("low", (5, 6, 7), params))
    engine.step()
    engine.submit(Submission("first", (5, 6, 7), params, priority=2))
    while not order:
        engine.step()
    engine.step()
    engine.submit(Submission("second", (5, 6, 7), params, priority=2))
    while engine.keys():
        engine.step()
    assert order == ["first", "low", "second"]
    assert engine.stats().admission_preemptions == 1


def test_without_num_blocks_the_pool_is_no_larger_than_could_be_used(tiny_model_dir: Path) -> None:
    assert build(tiny_model_dir, max_num_seqs=3).total_blocks == 3 * 128 // 16


def test_the_fingerprint_tells_numerics_apart_and_nothing_else(tiny_model_dir: Path) -> None:
    """A stream resumed on a replica that computes other bits would change its answer."""
    one = build(tiny_model_dir, dtype="float32", num_blocks=8)
    assert build(tiny_model_dir, dtype="float32", num_blocks=9).fingerprint == one.fingerprint
    assert build(tiny_model_dir, dtype="bfloat16", num_blocks=8).fingerprint != one.fingerprint


def test_another_version_of_the_models_code_has_another_fingerprint(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a rolling upgrade a stream would be resumed where the norms are computed anew."""
    one = build(tiny_model_dir, num_blocks=8)
    # By name: transformers replaces its own module while it is imported, maybe more than once.
    monkeypatch.setattr("engine.build.transformers.__version__", "5.0.0")
    assert build(tiny_model_dir, num_blocks=8).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 500}, "max_model_len must be from 2 to the model's 128, not 500"),
        ({"max_model_len": 1}, "max_model_len must be from 2 to the model's 128, not 1"),
        ({"num_blocks": 0}, "num_blocks must be an integer from 1, not 0"),
        ({"num_blocks": 1 << 40}, r"num_blocks must be at most \d+, which is what memory holds"),
        ({"num_blocks": 8, "block_tokens": 0}, "block_tokens must be an integer from 1, not 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer from 1, not 0"),
        ({"admission_preemption": -1}, "admission_preemption must be an integer from 0, not -1"),
        ({"max_admission_preemptions": 0}, "max_admission_preemptions must be .* from 1, not 0"),
        ({"prefill_chunk": 0}, "prefill_chunk must be an integer from 1, not 0"),
        ({"max_passes": -1}, "max_passes must be an integer from 0, not -1"),
        ({"swap_gib": -1}, "swap_gib must be a number from 0 to 1048576, not -1"),
        ({"num_blocks": 8, "swap_gib": 1e-9}, r"swap_gib must be from \S+ \(a block\) to"),
        ({"num_blocks": 8, "swap_gib": 1e6}, r"swap_gib must be from .*, which memory holds"),
        ({"target_tpot_ms": 0}, "target_tpot_ms must be a number from 0.001 to 1e9, not 0"),
        ({"target_tpot_ms": True}, "target_tpot_ms must be a number from 0.001 to 1e9, not True"),
        ({"threads": 0}, "threads must be an integer from 1, not 0"),
        ({"device": "abacus"}, "device must be auto, cpu or cuda, not 'abacus'"),
    ],
)
def test_a_bad_setting_names_itself_its_value_and_the_limit(
    tiny_model_dir: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidParam, match=message):
        build(tiny_model_dir, **settings)


@pytest.mark.parametrize(
    ("name", "value"), [("admission_preemption", -1), ("max_admission_preemptions", 0)]
)
def test_a_setting_that_fits_no_model_is_refused_before_one_is_looked_for(
    tmp_path: Path, name: str, value: int
) -> None:
    """Else a typing error costs minutes of loading weights."""
    with pytest.raises(InvalidParam, match=name):
        build(tmp_path / "nowhere", **{name: value})


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        build(tmp_path / "nowhere")


@pytest.mark.parametrize("block_tokens", [4, 32, 256])
def test_blocks_of_any_size_pass_the_start_up_check(
    tiny_model_dir: Path, block_tokens: int
) -> None:
    """The check's own pool had blocks of 16, and kernels made for others wrote beyond it."""
    info = build(tiny_model_dir, block_tokens=block_tokens)
    assert info.block_tokens == block_tokens


def test_an_engine_made_after_another_has_as_many_threads(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first leaves torch one thread, and the next took that for the machine's number."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() == 3
    build(tiny_model_dir, num_blocks=8, threads=None)
    assert default_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


def test_kernels_that_cannot_be_used_are_refused_or_replaced(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop without a compiler serves all the same; who asked for them is told why not."""
    monkeypatch.setattr(engine.backend, "load", _no_compiler)
    assert build(tiny_model_dir, num_blocks=8).kernels == "torch"
    with pytest.raises(InvalidParam, match=r"^kernels must be torch or auto here: there is no C"):
        build(tiny_model_dir, num_blocks=8, kernels="native")
    with pytest.raises(InvalidParam, match=r"^kernels must be torch or auto here: the model is on"):
        build(tiny_model_dir, num_blocks=8, kernels="triton")
    with pytest.raises(InvalidParam, match=r"^kernels must be one of auto, native, triton, torch"):
        build(tiny_model_dir, kernels="avx")


def _no_compiler() -> NoReturn:
    raise NativeUnavailable("there is no C++ compiler")

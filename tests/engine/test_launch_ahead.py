"""Steps that are launched before the tokens of the one under way are known: the same answers."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.batch import Batch
from engine.logits import SampleRow
from engine.request import SamplingParams
from engine.sampled import Known, Sampled
from engine.sampling import Sampler
from engine.submission import Submission
from tests.engine.rig import EOS, TIMEOUT, Bench, EarlySampler
from tests.engine.scripted_guides import ScriptedGuides
from tests.engine.tiny import VOCAB


class MisleadingSampler(EarlySampler):
    """Tells the next step wrong tokens now and then, as a device does that has looked too short."""

    def start(
        self, logits: Tensor, rows: Sequence[SampleRow], positions: Sequence[int] | None = None
    ) -> Sampled:
        chosen = super().start(logits, rows, positions).fetch()
        wrong = [i for i, token in enumerate(chosen) if isinstance(token, int) and token % 3 == 0]
        told = Misleading(chosen)
        told.changed = wrong
        return told


class Misleading(Known):
    @property
    def tokens(self) -> Tensor:
        tokens = super().tokens
        tokens[list(self.changed)] += 1
        return tokens


class AheadBench(Bench):
    overlap = True
    sampler = EarlySampler

    def __init__(self, **options: Any) -> None:
        super().__init__(debug=True, **options)
        self.batches: list[Batch] = []
        self.runner.before = self.batches.append

    @property
    def ahead(self) -> list[bool]:
        """Of each step, whether it was launched before the tokens of the one before were known."""
        return [batch.sources is not None for batch in self.batches]


class MisledBench(AheadBench):
    sampler = MisleadingSampler


@pytest.fixture
def bench() -> Iterator[AheadBench]:
    bench = AheadBench()
    yield bench
    bench.engine.stop(TIMEOUT)


@dataclass(frozen=True)
class Ask:
    """A request, and before which step it comes and is aborted."""

    key: str
    prompt: tuple[int, ...]
    params: SamplingParams
    comes: int = 0
    goes: int | None = None
    priority: int = 0


def outcome(bench: Bench, asks: Sequence[Ask]) -> dict[str, object]:
    """What each request that was not aborted has been told, and that nothing is left of any."""
    step = 0
    todo = list(asks)
    while todo or bench.engine.keys():
        for ask in [ask for ask in todo if ask.comes <= step]:
            todo.remove(ask)
            bench.engine.submit(Submission(ask.key, ask.prompt, ask.params, ask.priority))
        for ask in asks:
            if ask.goes == step:
                bench.engine.abort(ask.key)
        bench.engine.step()
        step += 1
    while bench.engine._loop.under_way:
        bench.engine.step()
    assert bench.blocks.free_blocks == bench.blocks.total_blocks
    told: dict[str, object] = {}
    for ask in asks:
        if ask.goes is None:
            inbox, key = bench.inbox, ask.key
            last = inbox.of(key)[-1]
            told[key] = (
                inbox.tokens(key),
                inbox.text(key),
                last.finish,
                last.error,
                [one.token for one in inbox.logprobs(key)],
                [one and one.token for one in inbox.prompt_logprobs(key)],
            )
    return told


params = st.builds(
    SamplingParams,
    max_tokens=st.integers(3, 9),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 0, 5]),
    seed=st.integers(0, 99),
    ignore_eos=st.just(False),
    stop_token_ids=st.sampled_from([(), (), tuple(range(3, 40, 4))]),
    stop=st.sampled_from([(), (), ("w7", "w5 "), ("w1",)]),
    min_tokens=st.sampled_from([0, 0, 3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.0, 1.4]),
    logit_bias=st.sampled_from([(), ((30, 5.0),)]),
    logprobs=st.sampled_from([None, None, 2]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
    grammar=st.sampled_from([None, None, None, "30|31 40|41|42 50 60|61|62|63 70|71 80"]),
)


asks = st.lists(
    st.tuples(
        st.lists(st.integers(3, 20), min_size=1, max_size=9),
        params,
        st.integers(0, 8),
        st.none() | st.none() | st.integers(0, 12),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=15, deadline=None)
@given(
    drawn=asks,
    kind=st.sampled_from([AheadBench, AheadBench, MisledBench]),
    blocks=st.sampled_from([40, 9, 7]),
    cache=st.booleans(),
    chunk=st.sampled_from([16, 3]),
    slots=st.sampled_from([0, 9]),
    level=st.sampled_from([0, 0, 2]),
)
def test_everybody_is_told_what_the_plain_loop_tells(
    drawn: list[tuple[list[int], SamplingParams, int, int | None, int]],
    kind: type[Bench],
    blocks: int,
    cache: bool,
    chunk: int,
    slots: int,
    level: int,
) -> None:
    """Tokens, text, why it ended; preempted, swapped, bound by a grammar or penalised."""
    crowd = [
        Ask(f"r{i}", tuple(prompt), asked, comes, goes, priority)
        for i, (prompt, asked, comes, goes, priority) in enumerate(drawn)
    ]
    results = []
    for make, pool in ((Bench, 64), (kind, blocks)):
        bench = make(
            num_blocks=pool,
            max_seqs=4,
            cache=cache,
            chunk=chunk,
            slots=slots,
            admission_preemption=level,
            guides=ScriptedGuides(VOCAB, EOS),
        )
        results.append(outcome(bench, crowd))
        bench.engine.stop()
    assert results[0] == results[1]


def test_a_prefix_cache_holds_the_same_afterwards() -> None:
    """Fault: what a request was computed for nothing is found by others, or something is not."""
    held = []
    for make in (Bench, AheadBench):
        bench = make(cache=True, num_blocks=64, eos=-1)
        for i in range(4):
            bench.submit(f"r{i}", tuple(range(3 + i, 12 + i)), max_tokens=5 + i)
        bench.submit("stops", (60, 61, 62), max_tokens=20, stop_token_ids=tuple(range(0, VOCAB, 3)))
        bench.run()
        held.append(sorted(bench.engine.held_prefixes(64)))
    assert held[0] == held[1]
    assert held[0]


def test_steps_are_launched_before_the_tokens_are_known(bench: AheadBench) -> None:
    """Fault: the device waits for the host between two steps."""
    held, go_on = threading.Semaphore(0), threading.Event()

    class Held:
        changed: Sequence[int] = ()

        def __init__(self, sampled: Sampled) -> None:
            self._sampled = sampled

        @property
        def tokens(self) -> Tensor:
            return self._sampled.tokens

        def fetch(self) -> Sequence[int | Exception]:
            held.release()
            assert go_on.wait(TIMEOUT)
            return self._sampled.fetch()

    sampler = bench.engine._loop._pipeline._executor._sampler
    start = sampler.start
    sampler.start = lambda *given: Held(start(*given))  # type: ignore[method-assign]
    second = threading.Event()
    bench.runner.before = lambda batch: second.set() if batch.sources is not None else None
    bench.engine.start()
    bench.submit("a", max_tokens=4)
    assert held.acquire(timeout=TIMEOUT)
    assert second.wait(TIMEOUT), "the second step computes before the first one's token is there"
    go_on.set()
    bench.inbox.wait(lambda: bench.inbox.ended("a"))
    alone = Bench()
    alone.submit("a", max_tokens=4)
    alone.run()
    assert bench.inbox.tokens("a") == alone.inbox.tokens("a")


def test_all_steps_but_the_first_are_launched_ahead(bench: AheadBench) -> None:
    for i in range(3):
        bench.submit(f"r{i}", (i + 3, 4, 5), max_tokens=5 + i, temperature=1.0, top_p=0.9, seed=i)
    bench.run()
    assert bench.ahead == [False] + [True] * 6


def test_a_stop_token_costs_one_row_that_is_nobodys(bench: AheadBench) -> None:
    bench.submit("whole", max_tokens=9)
    bench.run()
    third = bench.inbox.tokens("whole")[2]
    length = bench.inbox.tokens("whole").index(third) + 1
    bench.batches.clear()
    bench.submit("cut", max_tokens=9, stop_token_ids=(third,))
    bench.run()
    assert len(bench.batches) == length + 1
    assert bench.inbox.tokens("cut") == bench.inbox.tokens("whole")[:length]


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({}, False),
        ({"logprobs": 1}, False),
        ({"min_tokens": 3, "stop": ("no",)}, False),
        ({"frequency_penalty": 0.5}, True),
        ({"repetition_penalty": 1.5}, True),
        ({"grammar": "30|31 40|41|42 50 60|61|62|63 70|71 80"}, True),
    ],
)
def test_a_step_waits_for_tokens_on_which_the_next_choice_depends(
    more: dict[str, Any], waits: bool
) -> None:
    bench = AheadBench(guides=ScriptedGuides(VOCAB, EOS))
    bench.submit("a", max_tokens=5, **more)
    bench.run()
    assert bench.ahead == [False] + [not waits] * 4


def test_who_waits_for_tokens_holds_nobody_up_when_it_has_ended(bench: AheadBench) -> None:
    bench.submit("free", max_tokens=8)
    bench.submit("bound", max_tokens=4, presence_penalty=0.5)
    bench.run()
    assert bench.ahead == [False] * 4 + [True] * 4


def test_a_row_that_went_on_from_a_wrong_token_is_computed_again() -> None:
    """Fault: it keeps K and V of the wrong token, or says what follows that."""
    bench, plain = MisledBench(), Bench()
    for each in (bench, plain):
        for i in range(4):
            each.submit(f"r{i}", (i + 3, 4, 5), max_tokens=12, temperature=1.0, seed=i)
        each.run()
    for i in range(4):
        assert bench.inbox.tokens(f"r{i}") == plain.inbox.tokens(f"r{i}")
    assert True in bench.ahead
    assert len(bench.batches) > 12


def test_a_batch_that_fails_as_a_whole_is_followed_by_one_that_has_its_tokens(
    bench: AheadBench,
) -> None:
    """Launched already, it takes them from where the rows that worked have left theirs."""
    passes = 0

    def fail(batch: Batch) -> None:
        nonlocal passes
        passes += 1
        bench.batches.append(batch)
        if passes > 3 and 66 in batch.tokens.tolist():
            raise RuntimeError("no kernel for 66")

    bench.runner.before = fail
    bench.submit("good", max_tokens=7)
    bench.submit("bad", (5, 66), max_tokens=7, logit_bias=((66, 100.0),))
    bench.run()
    alone = Bench()
    alone.submit("good", max_tokens=7)
    alone.run()
    assert bench.inbox.tokens("good") == alone.inbox.tokens("good")
    assert bench.inbox.of("bad")[-1].error == "RuntimeError: no kernel for 66"
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_an_interrupted_wait_launches_no_step_twice(
    bench: AheadBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.engine._loop._pipeline._worker
    assert worker is not None
    bench.submit("a", max_tokens=6)
    bench.engine.step()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(worker, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.engine.step()
    bench.run()
    alone = Bench()
    alone.submit("a", max_tokens=6)
    alone.run()
    assert bench.inbox.tokens("a") == alone.inbox.tokens("a")
    assert len(bench.batches) == 6


def test_a_stopped_loop_tells_what_is_under_way(bench: AheadBench) -> None:
    told = threading.Event()
    on_step = bench.engine._loop.on_step

    def hear(report: Any) -> None:
        on_step(report)
        if len(bench.inbox.tokens("a")) == 3:
            bench.engine._loop.closing = True  # as another thread's stop() does
            told.set()

    bench.engine._loop.on_step = hear
    bench.engine.start()
    bench.submit("a", max_tokens=50)
    assert told.wait(TIMEOUT)
    assert bench.engine.stop(TIMEOUT)
    assert len(bench.inbox.tokens("a")) == len(bench.batches) < 50


def test_a_sampler_need_not_know_the_tokens_before() -> None:
    rows = [
        SampleRow(SamplingParams(temperature=1.0, min_tokens=4), i, (1,), [5] * i, {3})
        for i in range(6)
    ]
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1))
    late = [
        SampleRow(row.params, row.seed, row.prompt, row.generated[:-1], row.stop_tokens)
        for row in rows
    ]
    sampled = Sampler(VOCAB).start(logits, late, range(6))
    assert sampled.fetch() == Sampler(VOCAB).sample(logits, rows)

"""engine.engine: a loop that answers at once and never loses a request."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from engine.batch import Batch
from engine.logits import SampleRow
from engine.request import FinishReason, InvalidParam, NeverFits, QueueFull, SamplingParams
from engine.sampling import SamplingError
from engine.submission import DuplicateKey, EngineFailed, Submission
from tests.engine.rig import TIMEOUT, WAITING_LOOPS, Bench
from tests.engine.tiny import VOCAB

pytestmark = pytest.mark.usefixtures("each_loop")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.engine.stop(TIMEOUT)


def test_requests_end_with_all_their_tokens_and_free_blocks(bench: Bench) -> None:
    bench.engine.start()
    for i in range(20 - 4):
        bench.submit(f"r{i}", (i + 3, 4, 5), max_tokens=3 + i % 5)
    bench.inbox.wait(lambda: all(bench.inbox.ended(f"r{i}") for i in range(16)))
    for i in range(16):
        assert len(bench.inbox.tokens(f"r{i}")) == 3 + i % 5
        assert bench.inbox.of(f"r{i}")[-1].finish is FinishReason.LENGTH
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_batched_text_equals_the_text_of_each_alone(bench: Bench) -> None:
    for i in range(8):
        bench.submit(f"r{i}", tuple(range(3, 5 + i)), max_tokens=8)
    bench.run()
    for i in range(8):
        single = Bench()
        single.submit("alone", tuple(range(3, 5 + i)), max_tokens=8)
        single.run()
        assert single.inbox.text("alone") == bench.inbox.text(f"r{i}")
        assert single.inbox.tokens("alone") == bench.inbox.tokens(f"r{i}")


def test_a_stop_string_ends_the_request_and_is_not_in_its_text(bench: Bench) -> None:
    bench.submit("whole", max_tokens=12)
    bench.run()
    words = bench.inbox.text("whole").split()
    bench.submit("cut", max_tokens=12, stop=(words[4],))
    bench.run()
    assert bench.inbox.of("cut")[-1].finish is FinishReason.STOP
    assert bench.inbox.text("cut") == bench.inbox.text("whole").split(words[4])[0]


def test_an_end_token_stops_unless_it_is_ignored(bench: Bench) -> None:
    bench.submit("free", max_tokens=8)
    bench.run()
    tokens = bench.inbox.tokens("free")
    third = tokens[2]
    until = tokens.index(third) + 1
    ended = Bench(eos=third)
    ended.submit("ignored", max_tokens=8)
    ended.submit("asked", max_tokens=8, stop_token_ids=(third,))
    ended.submit("eos", max_tokens=8, ignore_eos=False)
    ended.run()
    assert ended.inbox.tokens("ignored") == tokens
    for key in ("asked", "eos"):
        assert ended.inbox.tokens(key) == tokens[:until]
        assert ended.inbox.of(key)[-1].finish is FinishReason.STOP


def test_what_may_still_become_a_stop_string_is_sent_when_nothing_follows(bench: Bench) -> None:
    bench.submit("whole", max_tokens=6)
    bench.run()
    words = bench.inbox.text("whole").split()
    bench.submit("length", max_tokens=6, stop=(f"{words[-1]} and more",))
    bench.run()
    assert bench.inbox.text("length") == bench.inbox.text("whole")
    assert bench.inbox.of("length")[-1].finish is FinishReason.LENGTH

    last = int(words[-1].removeprefix("w"))
    bench.submit("token", max_tokens=6, stop=(f"{words[-2]} and more",), stop_token_ids=(last,))
    bench.run()
    assert bench.inbox.text("token").split() == words[:-1]
    assert bench.inbox.of("token")[-1].finish is FinishReason.STOP


@WAITING_LOOPS
def test_a_draw_knows_its_seed_its_prompt_and_all_tokens_so_far(bench: Bench) -> None:
    """Noise of one position for all, or penalties that forget, give fluent, wrong answers."""
    sampler = bench.engine._loop._pipeline._executor._sampler
    sample, seen = sampler.sample, []

    def record(logits: Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
        seen.extend((row.seed, tuple(row.prompt), tuple(row.generated)) for row in rows)
        return sample(logits, rows)

    sampler.sample = record  # type: ignore[method-assign]
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=5, ignore_eos=True)
    bench.engine.submit(Submission("a", (5, 6, 7), params, generated=(8, 9)))
    bench.run()
    made = (8, 9, *bench.inbox.tokens("a"))
    assert seen == [(11, (5, 6, 7), made[:n]) for n in (2, 3, 4)]


def test_requests_without_a_seed_do_not_share_one(bench: Bench) -> None:
    for key in ("a", "b"):
        bench.submit(key, temperature=1.0, max_tokens=8)
    bench.run()
    assert bench.inbox.tokens("a") != bench.inbox.tokens("b")


@pytest.mark.parametrize("urgent", [{"priority": 9}, {"arrival": -5}])
def test_priority_and_arrival_reach_the_scheduler(urgent: dict[str, int]) -> None:
    bench = Bench(max_seqs=1)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    bench.engine.submit(Submission("later", (5, 6), params))
    bench.engine.submit(Submission("first", (5, 6), params, **urgent))
    bench.run()
    assert [delta.key for delta in bench.inbox.deltas] == ["first"] * 2 + ["later"] * 2


SEEDED = SamplingParams(
    max_tokens=9,
    temperature=1.0,
    seed=11,
    frequency_penalty=0.8,
    presence_penalty=0.4,
    ignore_eos=True,
)


def disturbed(bench: Bench, params: SamplingParams, steps: int) -> None:
    """Let a request of priority 0 make so many steps, then make way for an urgent one."""
    bench.engine.submit(Submission("victim", (5, 6, 7), params))
    for _ in range(steps):
        bench.engine.step()
    bench.engine.submit(Submission("urgent", (8, 9), params, priority=2))
    bench.engine.step()
    stats = bench.engine.stats()
    assert (stats.admission_preemptions, stats.running, stats.waiting) == (1, 1, 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
@pytest.mark.parametrize("steps", [1, 4])
def test_who_made_way_goes_on_with_the_same_text(temperature: float, steps: int) -> None:
    """Draws at other positions, penalties that forget, or text that is sent twice."""
    params = replace(SEEDED, temperature=temperature)
    bench = Bench(max_seqs=1, admission_preemption=2, debug=True)
    disturbed(bench, params, steps)
    bench.run()
    for key, prompt in (("urgent", (8, 9)), ("victim", (5, 6, 7))):
        alone = Bench()
        alone.engine.submit(Submission(key, prompt, params))
        alone.run()
        assert bench.inbox.tokens(key) == alone.inbox.tokens(key)
        assert bench.inbox.text(key) == alone.inbox.text(key)
    last = [delta.key for delta in bench.inbox.deltas if delta.finish is not None]
    assert last == ["urgent", "victim"]


@pytest.mark.parametrize("aborted", ["victim", "urgent"])
def test_one_of_them_is_aborted_while_the_other_has_its_place(aborted: str) -> None:
    """Blocks of the one that made way freed twice, or those of the urgent one never."""
    bench = Bench(max_seqs=1, admission_preemption=2, debug=True)
    disturbed(bench, SEEDED, steps=3)
    before = len(bench.inbox.of(aborted))
    assert bench.engine.abort(aborted)
    bench.run()
    (other,) = {"victim", "urgent"} - {aborted}
    assert len(bench.inbox.of(aborted)) == before
    assert len(bench.inbox.tokens(other)) == 9
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_progress_counts_from_the_last_step_or_from_the_end_of_idleness() -> None:
    """Else a replica that idled for long is taken for one that hangs."""
    now = 0.0
    bench = Bench(monotonic=lambda: now)
    now = 100.0
    assert not bench.engine.progress().busy
    bench.submit("a", max_tokens=2)
    assert (bench.engine.progress().busy, bench.engine.progress().since) == (True, 0)
    now = 101.0
    bench.submit("b", max_tokens=2)
    assert bench.engine.progress().since == 1, "somebody else's arrival is no progress"
    bench.engine.step()
    assert (bench.engine.progress().steps, bench.engine.progress().since) == (1, 0)


def test_a_step_that_hangs_is_no_idleness_though_its_requests_were_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its gateways had left, so it looked idle, healthy and free, and was never replaced."""
    now = 0.0
    bench = Bench(monotonic=lambda: now)
    bench.submit("a", max_tokens=2)
    run = bench.engine._loop._pipeline._executor.launch

    def hang(*arguments: Any) -> Any:
        nonlocal now
        now = 100.0
        assert bench.engine.abort("a")
        assert (bench.engine.progress().busy, bench.engine.progress().since) == (True, 100)
        bench.submit("b", max_tokens=2)
        assert bench.engine.progress().since == 100, "a newcomer is no progress"
        return run(*arguments)

    monkeypatch.setattr(bench.engine._loop._pipeline._executor, "launch", hang)
    bench.engine.step()
    assert (bench.engine.progress().busy, bench.engine.progress().since) == (True, 0)


def test_a_request_resumed_from_its_tokens_goes_on_as_it_would_have(bench: Bench) -> None:
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=10, ignore_eos=True)
    bench.engine.submit(Submission("whole", (5, 6, 7), params))
    bench.run()
    tokens, text = bench.inbox.tokens("whole"), bench.inbox.text("whole")
    for cut in range(1, 10):
        first = "".join(delta.text for delta in bench.inbox.of("whole")[:cut])
        key = f"cut{cut}"
        bench.engine.submit(Submission(key, (5, 6, 7), params, generated=tuple(tokens[:cut])))
        bench.run()
        assert bench.inbox.tokens(key) == tokens[cut:]
        assert first + bench.inbox.text(key) == text


def test_an_aborted_request_says_nothing_more_and_frees_its_blocks_at_once(bench: Bench) -> None:
    bench.submit("a", max_tokens=50)
    bench.submit("b", max_tokens=4)
    bench.engine.step()
    assert bench.engine.abort("a")
    assert not bench.engine.abort("a")
    before = len(bench.inbox.of("a"))
    bench.run()
    assert len(bench.inbox.of("a")) == before
    assert len(bench.inbox.tokens("b")) == 4
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_an_abort_while_its_step_runs_frees_once_and_emits_nothing(bench: Bench) -> None:
    """mini-sglang PR#111: abort between the launch of a step and its result."""
    bench.submit("a")
    bench.submit("b")
    bench.runner.before = lambda batch: bench.engine.abort("a") and None
    bench.run()
    assert bench.inbox.of("a") == []
    assert len(bench.inbox.tokens("b")) == 6
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_submit_answers_while_a_step_runs(bench: Bench) -> None:
    """A gateway's event loop must not wait for the model."""
    running, go_on = threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        running.set()
        assert go_on.wait(TIMEOUT)

    bench.runner.before = hold
    bench.engine.start()
    bench.submit("a")
    assert running.wait(TIMEOUT)
    bench.submit("b")
    assert bench.engine.abort("b")
    assert bench.engine.progress().busy
    go_on.set()
    bench.inbox.wait(lambda: bench.inbox.ended("a"))


@pytest.mark.parametrize("where", ["prompt", "generated"])
@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_outside_the_vocabulary_is_refused(bench: Bench, where: str, token: int) -> None:
    """On a GPU one such index stops the device, and with it all requests."""
    ids = {"prompt": (5,), "generated": (), where: (5, token)}
    with pytest.raises(InvalidParam, match=f"{where} must be token ids from 0 to 89, not {token}"):
        bench.engine.submit(Submission("a", params=SamplingParams(), **ids))  # type: ignore[arg-type]
    assert bench.engine.keys() == ()


def test_a_stopped_engine_takes_nothing(bench: Bench) -> None:
    """A request that is taken when the loop has gone would wait for ever."""
    bench.engine.start()
    assert bench.engine.stop(TIMEOUT)
    with pytest.raises(EngineFailed, match="stopped"):
        bench.submit("late")


def test_refusals_come_from_submit_and_leave_nothing() -> None:
    bench = Bench(num_blocks=6, max_waiting=1)
    with pytest.raises(NeverFits) as never:
        bench.submit("big", tuple(range(3, 23)), max_tokens=10)
    assert (never.value.blocks, never.value.total) == (8, 6)
    bench.submit("a")
    with pytest.raises(DuplicateKey):
        bench.submit("a")
    with pytest.raises(QueueFull):
        bench.submit("b")
    assert bench.engine.keys() == ("a",)
    bench.run()
    bench.submit("big")
    bench.run()
    assert len(bench.inbox.tokens("big")) == 6

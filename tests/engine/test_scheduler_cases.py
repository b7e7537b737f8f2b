"""Faults that users of other serving systems reported, as small cases for this scheduler."""

from collections.abc import Sequence

import pytest

from engine.blocks import Allocation, FreeListBlocks
from engine.prefill import Chunked, PrefillPolicy, WholePrompt
from engine.scheduler import (
    Chunk,
    NeverFits,
    QueueFull,
    Request,
    ScheduleOutput,
    Scheduler,
    SchedulerConfig,
    StepOutput,
)
from tests.engine.fake_model import FakeModel, answer, make_scheduler


def test_a_preempted_and_a_waiting_request_keep_their_places() -> None:
    """Fault (vllm#41951): victims and the queue are ordered by different rules."""
    model = FakeModel(make_scheduler(blocks=6, max_seqs=2, policy="priority"))
    elder = model.add([1] * 7, 9, arrival=10)
    victim = model.add([2] * 7, 9, arrival=12)
    model.step()
    between = model.add([3] * 4, 1, arrival=11)
    younger = model.add([4] * 4, 1, arrival=13)
    model.run_until_preempted(1)
    assert model.plans[-1].preempted == [victim]
    model.run()
    assert list(model.reasons).index(between) < list(model.reasons).index(victim)
    first_chunk = [chunk.id for plan in model.plans for chunk in plan.prefill]
    assert first_chunk == [elder, victim, between, victim, younger]
    assert model.generated[victim] == answer([2] * 7, 9)


def test_a_prompt_waits_until_all_its_blocks_are_free() -> None:
    """Fault (vllm#25538): a 30-token prompt starts in 6 free blocks, is thrown out, returns."""
    model = FakeModel(make_scheduler(blocks=10, max_seqs=3))
    holders = [model.add([i] * 5, 3) for i in range(2)]
    model.step()
    assert model.scheduler.blocks.free_blocks == 6
    late = model.add([9] * 30, 2)
    model.step()
    assert model.plans[-1] == ScheduleOutput([], holders, [])
    model.run()
    assert [chunk for plan in model.plans for chunk in plan.prefill if chunk.id == late] == [
        Chunk(late, 0, 30, True)
    ]
    assert model.scheduler.stats().preemptions == 0


def test_what_never_fits_is_refused_and_the_next_runs() -> None:
    """Fault (vllm#35541): a request larger than the pool waits for ever at the head."""
    model = FakeModel(make_scheduler(blocks=6))
    with pytest.raises(NeverFits) as refused:
        model.add([1] * 20, 10)
    assert (refused.value.blocks, refused.value.total) == (8, 6)
    following = model.add([1] * 4, 2)
    model.run()
    assert following in model.reasons


def test_nobody_skips_a_head_that_does_not_fit() -> None:
    """Fault (vllm PR#33499): small requests overtake a large head until it starves."""
    model = FakeModel(make_scheduler(blocks=6))
    holder = model.add([0] * 5, 3)
    model.step()
    head, small = model.add([1] * 20, 1), model.add([2], 1)
    assert model.scheduler.blocks.free_blocks == 4
    model.step()
    assert model.plans[-1] == ScheduleOutput([], [holder], [])
    model.run()
    assert list(model.reasons) == [holder, head, small]


def test_one_missing_block_costs_one_victim() -> None:
    """Fault (sglang#12493): one block short, and several requests are thrown out."""
    model = FakeModel(make_scheduler(blocks=12, max_seqs=4))
    first = model.add([0] * 12, 4)
    others = [model.add([i] * 9, 4) for i in range(1, 4)]
    model.step()
    assert model.scheduler.blocks.free_blocks == 0
    model.step()
    assert model.plans[-1] == ScheduleOutput([], [first, *others[:2]], [others[2]])
    assert model.scheduler.stats().preemptions == 1
    model.run()


def test_abort_between_launch_and_result() -> None:
    """Fault (mini-sglang PR#111): blocks freed twice, or a token for nobody."""
    model = FakeModel(make_scheduler(blocks=8))
    gone, stays = model.add([1] * 5, 4), model.add([2] * 5, 4)
    for _ in range(2):  # during its prefill, then during a decode
        plan = model.scheduler.schedule()
        outputs = model.forward(plan)
        model.scheduler.abort(gone)
        model.scheduler.abort(gone)
        events = model.finish(plan, outputs)
        assert [event.id for event in events] == [stays]
        assert model.scheduler.blocks.free_blocks == 6
        gone = model.add([3] * 5, 4)
        model.step()
    model.run()
    assert model.generated[stays] == answer([2] * 5, 4)
    assert model.scheduler.blocks.free_blocks == 8


class EverythingCached(FreeListBlocks):
    """A pool that claims to find all tokens of a request it has seen before."""

    def __init__(self, block_tokens: int, ids: Sequence[int]) -> None:
        super().__init__(block_tokens, ids)
        self.released: dict[int, list[int]] = {}

    def allocate(self, id: int, tokens: Sequence[int]) -> Allocation:
        super().allocate(id, tokens)
        return Allocation(len(tokens) if id in self.released else 0)

    def release(self, id: int, computed: Sequence[int]) -> None:
        super().release(id, computed)
        self.released[id] = list(computed)


@pytest.mark.parametrize("prefill", [WholePrompt(), Chunked(3)])
def test_a_fully_cached_request_computes_its_last_token(prefill: PrefillPolicy) -> None:
    """Fault (nano-vllm PR#211): a preempted request is planned with zero tokens."""
    blocks = EverythingCached(4, range(5))
    config = SchedulerConfig(4, 16, 4, max_model_len=20)
    scheduler = Scheduler(config, blocks, prefill)
    first, second = scheduler.add(Request([1] * 8, 5)), scheduler.add(Request([2] * 8, 5))
    again: list[Chunk] = []
    preempted = False
    for step in range(60):
        plan = scheduler.schedule()
        if preempted:
            again += [chunk for chunk in plan.prefill if chunk.id == second]
        if second in plan.preempted:
            preempted = True
            # K and V exist for all tokens but the newest.
            assert blocks.released[second] == list(scheduler.tokens(second))[:-1]
        sampled = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        scheduler.on_step([StepOutput(id, 100 + step) for id in sampled])
        assert {id for id in (first, second) if id in sampled} == set(sampled)
    assert not scheduler.has_unfinished()
    assert preempted
    assert [(chunk.len, chunk.last) for chunk in again] == [(1, True)]
    assert scheduler.stats().recomputed_tokens == 0


@pytest.mark.parametrize(("pool", "preempts"), [(14, True), (200, False)])
def test_penalties_and_seeds_survive_preemption(pool: int, preempts: bool) -> None:
    """Fault (vllm PR#19940): a recomputed request takes its output for prompt."""

    def seeded(prompt: Sequence[int], generated: Sequence[int]) -> int:
        position = len(generated)

        def score(token: int) -> int:
            noise = (7 * 7919 + position * 104_729 + token * 1_299_709) % 1009
            return noise - 300 * list(generated).count(token)

        return max(range(12), key=score)

    model = FakeModel(make_scheduler(blocks=pool), next_token=seeded)
    prompts = [[i] * (4 + i) for i in range(6)]
    ids = [model.add(prompt, 24) for prompt in prompts]
    model.run()
    assert (model.scheduler.stats().preemptions > 0) == preempts
    for id, prompt in zip(ids, prompts, strict=True):
        assert model.generated[id] == answer(prompt, 24, seeded)


def test_one_token_more_than_the_budget_does_not_hang() -> None:
    """Fault (sglang#36344): 129 tokens against a budget of 128 wait for ever."""
    prompt = list(range(129))
    model = FakeModel(make_scheduler(prefill=Chunked(128), max_batch_tokens=128))
    id = model.add(prompt, 2)
    model.run(steps=3)
    # The rest is a single token, which is what a decode computes.
    assert model.plans[:2] == [
        ScheduleOutput([Chunk(id, 0, 128, False)], [], []),
        ScheduleOutput([], [id], []),
    ]
    assert model.generated[id] == answer(prompt, 2)

    whole = FakeModel(make_scheduler(max_batch_tokens=128))
    id = whole.add(prompt, 2)
    whole.run(steps=2)
    assert whole.plans[0] == ScheduleOutput([Chunk(id, 0, 129, True)], [], [])


def test_a_group_that_does_not_fit_leaves_nothing() -> None:
    """Fault (vllm PR#53936): of n = 4 choices three stay queued after the refusal."""
    scheduler = make_scheduler(max_waiting=3)
    group = [scheduler.add(Request([1, 2], 4)) for _ in range(3)]
    with pytest.raises(QueueFull):
        scheduler.add(Request([1, 2], 4))
    for id in group:
        scheduler.abort(id)
    stats = scheduler.stats()
    assert (scheduler.unfinished(), stats.waiting, stats.waiting_blocks) == (0, 0, 0)
    assert scheduler.schedule() == ScheduleOutput([], [], [])

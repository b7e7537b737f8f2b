"""engine.runner: transformers' models, families apart, over paged K and V."""

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from engine.batch import Batch
from engine.batch_builder import BatchBuilder
from engine.blocks import FreeListBlocks
from engine.kv_pool import KVPool, KVShape
from engine.linear import make_invariant
from engine.prefill import Chunked
from engine.runner import ModelRunner, UnsupportedAttention
from engine.scheduler import (
    Request,
    ScheduleOutput,
    Scheduler,
    SchedulerConfig,
    StepOutput,
    Token,
)

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILIES = [
    LlamaConfig(**SIZES, head_dim=8),
    LlamaConfig(**SIZES, head_dim=8, tie_word_embeddings=True, attention_bias=True),
    MistralConfig(**SIZES, head_dim=8, sliding_window=None),
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=16),
]


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def runner_of(model: PreTrainedModel, blocks: int = 64, block_tokens: int = 8) -> ModelRunner:
    make_invariant(model)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = KVShape(config.num_hidden_layers, config.num_key_value_heads, head_dim, model.dtype)
    return ModelRunner(model, KVPool(shape, blocks, block_tokens, torch.device("cpu")))


def prepare(
    plan: ScheduleOutput, scheduler: Scheduler, tops: Mapping[int, int] | None = None
) -> Batch:
    return BatchBuilder(scheduler, 8, 256).prepare(plan, tops)


def greedy(runner: ModelRunner, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """Generate with the real scheduler, prompts cut into chunks of 5."""
    scheduler = Scheduler(
        SchedulerConfig(max_seqs=8, max_batch_tokens=32, max_model_len=256),
        FreeListBlocks(runner.pool.block_tokens, range(runner.pool.num_blocks)),
        Chunked(5),
    )
    ids = [scheduler.add(Request(prompt, max_tokens)) for prompt in prompts]
    out: dict[int, list[int]] = {id: [] for id in ids}
    while scheduler.has_unfinished():
        plan = scheduler.schedule()
        logits = runner.forward(prepare(plan, scheduler))
        rows = [chunk.id for chunk in plan.prefill if chunk.last] + list(plan.decode)
        tokens = logits.argmax(-1).tolist()
        outputs = [StepOutput(id, token) for id, token in zip(rows, tokens, strict=True)]
        for event in scheduler.on_step(outputs):
            if isinstance(event, Token):
                out[event.id].append(event.token)
    return list(out.values())


@pytest.mark.parametrize("config", FAMILIES, ids=lambda c: type(c).__name__)
def test_a_family_gives_transformers_own_logits_and_greedy_tokens(config: PretrainedConfig) -> None:
    reference = random_model(config)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7], [1, 8, 2, 8, 1, 8]]
    expected = []
    for prompt in prompts:
        whole = torch.tensor([prompt])
        generated = reference.generate(
            whole, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected.append(generated[0, len(prompt) :].tolist())
    with torch.no_grad():
        logits = reference(torch.tensor([prompts[0]])).logits[0]

    runner = runner_of(random_model(config))
    assert greedy(runner, prompts, 12) == expected

    scheduler = Scheduler(
        SchedulerConfig(max_seqs=1, max_batch_tokens=64, max_model_len=64),
        FreeListBlocks(8, range(8)),
    )
    scheduler.add(Request(prompts[0], 1))
    batch = prepare(scheduler.schedule(), scheduler)
    everywhere = dataclasses.replace(batch, wanted=list(range(len(prompts[0]))))
    torch.testing.assert_close(runner.forward(everywhere), logits, rtol=1e-4, atol=1e-4)


def test_logits_that_a_family_scales_are_scaled_for_any_rows_at_any_time() -> None:
    """The model's own way from hidden states to logits, and not its last layer alone."""
    config = GraniteConfig(**SIZES, head_dim=8, logits_scaling=8.0)
    tokens = [3, 1, 4, 1, 5, 9, 2]
    with torch.no_grad():
        expected = random_model(config)(torch.tensor([tokens])).logits[0]
    runner = runner_of(random_model(config))
    scheduler = Scheduler(
        SchedulerConfig(max_seqs=1, max_batch_tokens=64, max_model_len=64),
        FreeListBlocks(8, range(8)),
    )
    scheduler.add(Request(tokens, 1))
    hidden = runner.hidden(prepare(scheduler.schedule(), scheduler))
    logits = runner.logits(hidden, range(len(tokens)))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    for rows in ([6], [0, 2], [5, 4, 3]):
        assert torch.equal(runner.logits(hidden, rows), logits[rows])


@pytest.mark.parametrize("chunk", [2, 3, 20])
def test_rows_of_a_prompt_are_scored_by_the_tokens_that_follow_them(chunk: int) -> None:
    """Each once, the last of a chunk by one of the next chunk, the last of all by none."""
    scheduler = Scheduler(
        SchedulerConfig(max_seqs=2, max_batch_tokens=64, max_model_len=64),
        FreeListBlocks(8, range(8)),
        Chunked(chunk),
    )
    scheduler.add(Request([7] * 5, 9))
    id = scheduler.add(Request([1, 2, 3, 4, 5], 9, generated=[6, 7]))
    targets: list[int] = []
    for _ in range(5):
        plan = scheduler.schedule()
        batch = prepare(plan, scheduler, {id: 2})
        for part in batch.scored:
            assert batch.segments[part.segment].length >= len(part.targets)
            assert batch.tokens[part.row] == len(targets) + 1
            targets.extend(part.targets)
        rows = [piece.id for piece in plan.prefill if piece.last] + list(plan.decode)
        scheduler.on_step([StepOutput(row, 8) for row in rows])
    assert targets == [2, 3, 4, 5]


def test_a_step_that_only_fills_caches_returns_no_logits() -> None:
    runner = runner_of(random_model(FAMILIES[0]))
    scheduler = Scheduler(
        SchedulerConfig(max_seqs=1, max_batch_tokens=64, max_model_len=64),
        FreeListBlocks(8, range(8)),
        Chunked(4),
    )
    scheduler.add(Request([1] * 9, 1))
    assert runner.forward(prepare(scheduler.schedule(), scheduler)).shape == (0, VOCAB)


def test_a_prepared_batch_survives_an_abort() -> None:
    """mini-sglang PR#111: the scheduler may drop a request while its step runs."""
    runner = runner_of(random_model(FAMILIES[0]))
    scheduler = Scheduler(
        SchedulerConfig(max_seqs=2, max_batch_tokens=64, max_model_len=64),
        FreeListBlocks(8, range(8)),
    )
    id = scheduler.add(Request([1, 2, 3], 4))
    batch = prepare(scheduler.schedule(), scheduler)
    scheduler.abort(id)
    logits = runner.forward(batch)
    assert logits.shape == (1, VOCAB)
    assert scheduler.on_step([StepOutput(id, int(logits.argmax()))]) == []
    assert scheduler.blocks.free_blocks == 8


def test_a_family_whose_attention_is_more_than_causal_is_refused() -> None:
    """Ignoring the argument would give fluent, wrong answers."""
    config = Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=30.0, sliding_window=256)
    runner = runner_of(random_model(config))
    with pytest.raises(UnsupportedAttention, match="'softcap', which is not supported"):
        greedy(runner, [[1, 2, 3]], 1)

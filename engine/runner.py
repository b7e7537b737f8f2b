"""ModelRunner: a ScheduleOutput in, logits out; the model itself comes from transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from engine.attention.paged import PagedAttention
from engine.attention.plan import AttentionPlan, AttentionPlanner, Segment
from engine.blocks import BlockSpace
from engine.kv_pool import KVPool
from engine.scheduler import ScheduleOutput

ATTENTION = "tidegate_paged"


# Arguments by which models of other families change the scores: soft caps (Gemma 2),
# attention sinks (gpt-oss), position biases (T5).
_CHANGES_SCORES = ("softcap", "s_aux", "position_bias")


class UnsupportedAttention(RuntimeError):
    """A model asks for an attention that is not built; answering without it would be wrong.

    Attributes:
        feature: transformers' name for what it asks for.
    """

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature

    def __str__(self) -> str:
        return f"the model's attention needs {self.feature!r}, which is not supported"


class Sequences(Protocol):
    """What the runner needs to know of a sequence; a Scheduler with its blocks knows it."""

    def tokens(self, id: int) -> Sequence[int]:
        """Prompt and generated tokens so far."""
        ...

    @property
    def blocks(self) -> BlockSpace:
        """Gives the block table of each sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, detached from the scheduler that planned it.

    Attributes:
        tokens: the ids of all rows.
        segments: the sequences' parts that the rows make up, in order.
        wanted: rows whose logits are needed: the last one of each chunk that ends its
            prompt, then each decode.
    """

    tokens: list[int]
    segments: list[Segment]
    wanted: list[int]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    paged_attention: PagedAttention,
    attention_plan: AttentionPlan,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The entry in transformers' attention registry.

    The step's plan and the pool come through the forward's keyword arguments, so that
    nothing global ties a model to a runner.

    Args:
        query: [1, heads, rows, d]; key and value: [1, kv_heads, rows, d].

    Returns:
        [1, rows, heads, d], and no attention weights.

    Raises:
        UnsupportedAttention: the model asks for more than causal attention.
    """
    for name in _CHANGES_SCORES:
        if extras.get(name) is not None:
            raise UnsupportedAttention(name)
    layer: int = module.layer_idx  # type: ignore[assignment]  # transformers sets it
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return paged_attention.run(attention_plan, layer, q, k, v, scaling)[None], None


AttentionInterface.register(ATTENTION, _attend)


class ModelRunner:
    """Runs a transformers causal LM over paged K and V.

    The model's attention is replaced by the paged one; its linears should be invariant
    (:func:`engine.linear.make_invariant`), or the same-bits contract does not hold.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool) -> None:
        self.pool = pool
        self.attention = PagedAttention(pool, model.config.num_attention_heads)
        model.set_attn_implementation(ATTENTION)
        self._model = model
        self._planner = AttentionPlanner(pool.block_tokens, pool.null_block, pool.device)

    @staticmethod
    def prepare(plan: ScheduleOutput, sequences: Sequences) -> Batch:
        """Copy from the scheduler what the step needs; it may change while the model runs."""
        batch = Batch([], [], [])
        for chunk in plan.prefill:
            table = tuple(sequences.blocks.block_table(chunk.id))
            tokens = sequences.tokens(chunk.id)[chunk.start : chunk.start + chunk.len]
            batch.tokens.extend(tokens)
            batch.segments.append(Segment(table, chunk.start, chunk.len))
            if chunk.last:
                batch.wanted.append(len(batch.tokens) - 1)
        for id in plan.decode:
            table = tuple(sequences.blocks.block_table(id))
            tokens = sequences.tokens(id)
            batch.tokens.append(tokens[-1])
            batch.segments.append(Segment(table, len(tokens) - 1, 1))
            batch.wanted.append(len(batch.tokens) - 1)
        return batch

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        device = self.pool.device
        plan = self._planner.plan(batch.segments)
        self.attention.begin(plan)
        output = self._model(
            input_ids=torch.tensor([batch.tokens], device=device),
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(batch.wanted, dtype=torch.long, device=device),
            paged_attention=self.attention,
            attention_plan=plan,
        )
        logits: Tensor = output.logits[0].float()
        return logits

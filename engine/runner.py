"""ModelRunner: a ScheduleOutput in, logits out; the model itself comes from transformers."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from engine.attention.paged import PagedAttention
from engine.attention.plan import AttentionPlan, AttentionPlanner, Segment
from engine.kv_pool import KVPool
from engine.linear import Tiling, make_invariant
from engine.scheduler import ScheduleOutput

ATTENTION = "tidegate_paged"


class Sequences(Protocol):
    """What the runner needs to know of a sequence; the scheduler knows it."""

    def tokens(self, id: int) -> Sequence[int]:
        """Prompt and generated tokens so far."""
        ...

    def block_table(self, id: int) -> Sequence[int]:
        """Ids of the blocks that the sequence holds."""
        ...


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
    **_: Any,
) -> tuple[Tensor, None]:
    """The entry in transformers' attention registry; [1, heads, rows, d] in, [1, rows, heads, d] out.

    The step's plan and the pool come through the forward's keyword arguments, so that
    nothing global ties a model to a runner.
    """
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    return paged_attention.run(attention_plan, module.layer_idx, *rows, scaling)[None], None


AttentionInterface.register(ATTENTION, _attend)


class ModelRunner:
    """Runs a transformers causal LM over paged K and V.

    Owns the model: its linears are swapped for invariant ones and its attention for
    the paged one when the runner is made.

    Attributes:
        tilings: how each linear shape is run on this machine.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool) -> None:
        self.pool = pool
        self.tilings: dict[tuple[int, int], Tiling] = make_invariant(model)
        self.attention = PagedAttention(pool, model.config.num_attention_heads)
        model.set_attn_implementation(ATTENTION)
        self._model = model
        self._planner = AttentionPlanner(pool.block_tokens, pool.null_slot, pool.device)

    def execute(self, plan: ScheduleOutput, sequences: Sequences) -> Tensor:
        """Run one step.

        Returns:
            [n, vocab] float32 logits, one row for each chunk that is the last of its
            prompt and then one for each decode, in the plan's order.
        """
        ids: list[int] = []
        segments: list[Segment] = []
        wanted: list[int] = []
        for chunk in plan.prefill:
            tokens = sequences.tokens(chunk.id)
            ids.extend(tokens[chunk.start : chunk.start + chunk.len])
            segments.append(Segment(sequences.block_table(chunk.id), chunk.start, chunk.len))
            if chunk.last:
                wanted.append(len(ids) - 1)
        for id in plan.decode:
            tokens = sequences.tokens(id)
            ids.append(tokens[-1])
            segments.append(Segment(sequences.block_table(id), len(tokens) - 1, 1))
            wanted.append(len(ids) - 1)
        return self._forward(ids, segments, wanted)

    @torch.inference_mode()
    def _forward(self, ids: list[int], segments: list[Segment], wanted: list[int]) -> Tensor:
        device = self.pool.device
        plan = self._planner.plan(segments)
        output = self._model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=device),
            paged_attention=self.attention,
            attention_plan=plan,
        )
        logits: Tensor = output.logits[0].float()
        return logits

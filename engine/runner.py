"""ModelRunner: a ScheduleOutput in, logits out; the model itself comes from transformers."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

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

    def prompt_len(self, id: int) -> int:
        """How many of them are the prompt."""
        ...

    @property
    def blocks(self) -> BlockSpace:
        """Gives the block table of each sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows of a prompt whose log-probabilities were asked for.

    Attributes:
        segment: which one of the batch they begin.
        row: the first of them.
        targets: for each row the token that follows it in the prompt.
        top: likeliest tokens to tell with each.
    """

    segment: int
    row: int
    targets: tuple[int, ...]
    top: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, detached from the scheduler that planned it.

    Attributes:
        tokens: the ids of all rows.
        segments: the sequences' parts that the rows make up, in order.
        wanted: rows whose logits are needed: the last one of each chunk that ends its
            prompt, then each decode.
        scored: rows of prompts that are needed besides.
    """

    tokens: list[int]
    segments: list[Segment]
    wanted: list[int]
    scored: list[Scored] = field(default_factory=list)


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


class _Computed(nn.Module):
    """Stands in for a model's body: what it would compute is its input already."""

    def forward(self, inputs_embeds: Tensor, **_: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


def _head_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its body, from hidden states to logits: some families scale those."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Computed()}
    return head


class Runner(Protocol):
    """Computes steps over one pool of K and V.

    Attributes:
        pool: where K and V are kept.
    """

    pool: KVPool

    def prepare(
        self, plan: ScheduleOutput, sequences: Sequences, tops: Mapping[int, int] | None = None
    ) -> Batch:
        """Copy from the scheduler what a step needs; see :meth:`ModelRunner.prepare`."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        ...

    def hidden(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return the hidden states [rows, width] behind them."""
        ...

    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        ...


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
        self._head = _head_of(model)
        self._planner = AttentionPlanner(pool.block_tokens, pool.null_block, pool.device)

    @staticmethod
    def prepare(
        plan: ScheduleOutput, sequences: Sequences, tops: Mapping[int, int] | None = None
    ) -> Batch:
        """Copy from the scheduler what the step needs; it may change while the model runs.

        Args:
            plan: the step.
            sequences: where the plan comes from.
            tops: for each request whose prompt is to be scored, the likeliest tokens to tell.
        """
        batch = Batch([], [], [])
        for number, chunk in enumerate(plan.prefill):
            table = tuple(sequences.blocks.block_table(chunk.id))
            tokens = sequences.tokens(chunk.id)[chunk.start : chunk.start + chunk.len]
            if tops and chunk.id in tops:
                prompt = sequences.tokens(chunk.id)[: sequences.prompt_len(chunk.id)]
                targets = tuple(prompt[chunk.start + 1 : chunk.start + chunk.len + 1])
                batch.scored.append(Scored(number, len(batch.tokens), targets, tops[chunk.id]))
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

    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        return self.logits(self.hidden(batch), batch.wanted)

    @torch.inference_mode()
    def hidden(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return the hidden states [rows, width] behind them."""
        plan = self._planner.plan(batch.segments)
        self.attention.begin(plan)
        output = self._model.base_model(
            input_ids=torch.tensor([batch.tokens], device=self.pool.device),
            position_ids=plan.positions[None],
            use_cache=False,
            paged_attention=self.attention,
            attention_plan=plan,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        kept = torch.tensor(rows, dtype=torch.long, device=hidden.device)
        logits: Tensor = self._head(inputs_embeds=hidden[None, kept]).logits[0].float()
        return logits

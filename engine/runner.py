"""ModelRunner: a step's batch in, logits out; the model itself comes from transformers."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from engine.attention.paged import PagedAttention
from engine.batch import Batch, Int64s
from engine.cuda.upload import current, upload
from engine.kv_pool import KVPool

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


class Attention(Protocol):
    """Attention over K and V that lie in a pool's blocks."""

    def plan(self, batch: Batch) -> Any:
        """Prepare for a step: its plan, whose ``positions`` are int64 [rows]."""
        ...

    def run(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the rows' K and V, then attend: see :meth:`PagedAttention.run`."""
        ...


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    paged_attention: Attention,
    attention_plan: Any,
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

    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        ...

    def hidden(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return the hidden states [rows, width] behind them."""
        ...

    def logits(self, hidden: Tensor, rows: Sequence[int] | Int64s) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        ...


class ModelRunner:
    """Runs a transformers causal LM over paged K and V.

    The model's attention is replaced by the paged one; its linears should be invariant
    (:func:`engine.linear.make_invariant`), or the same-bits contract does not hold.
    """

    def __init__(
        self, model: PreTrainedModel, pool: KVPool, attention: Attention | None = None
    ) -> None:
        """Run ``model`` over ``pool``, with torch's attention if none is given."""
        self.pool = pool
        self._attention = attention or PagedAttention(pool, model.config.num_attention_heads)
        model.set_attn_implementation(ATTENTION)
        self._model = model
        self._head = _head_of(model)

    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        return self.logits(self.hidden(batch), batch.wanted)

    @torch.inference_mode()
    def hidden(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return the hidden states [rows, width] behind them."""
        with current(self.pool.device):
            plan = self._attention.plan(batch)
            output = self._model.base_model(
                input_ids=self._ids(batch)[None],
                position_ids=plan.positions[None],
                use_cache=False,
                paged_attention=self._attention,
                attention_plan=plan,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _ids(self, batch: Batch) -> Tensor:
        """Int64 [rows], without waiting for what the device does before."""
        if batch.sources is None:
            return upload((batch.tokens,), self.pool.device)[0]
        sources = batch.sources.astype(np.int64)
        return batch.filled(*upload((batch.tokens, sources), self.pool.device))

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int] | Int64s) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        with current(hidden.device):
            (kept,) = upload((np.asarray(rows, dtype=np.int64),), hidden.device)
            logits: Tensor = self._head(inputs_embeds=hidden[None, kept]).logits[0].float()
        return logits

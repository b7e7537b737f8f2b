"""Families: the models whose layers this package's own kernels compute, on a CPU or a GPU.

One way of computing a layer: norm, rotated attention, norm, gated MLP.  They differ in
biases and in norms of heads, which are found in the model itself.
"""

from typing import Any

from transformers import PreTrainedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""transformers' names of the model types."""

# The angles of other kinds of rotary embeddings change with the length of the sequence.
_FIXED_ANGLES = ("default", "linear", "llama3", "yarn")


def head_dim(model: PreTrainedModel) -> int:
    """Elements of a head of attention."""
    config = model.config
    named: int | None = getattr(config, "head_dim", None)
    return named or config.hidden_size // config.num_attention_heads


def unlike(model: PreTrainedModel) -> str | None:
    """What of ``model``'s layers the kernels do not compute; None if they compute it all."""
    config = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    dim, rotated = head_dim(model), _rotated(model)
    needs = (
        (config.model_type in FAMILIES, f"the model is of kind {config.model_type!r}"),
        (getattr(config, "hidden_act", "") == "silu", "the MLP is not gated by SiLU"),
        (rope in _FIXED_ANGLES, f"the rotary embedding is of kind {rope!r}"),
        (rotated == dim, f"{rotated} of a head's {dim} elements are rotated"),
    )
    return next((otherwise for holds, otherwise in needs if not holds), None)


def _rotated(model: PreTrainedModel) -> int:
    body: Any = model.base_model
    rotary = getattr(body, "rotary_emb", None)
    return 0 if rotary is None else 2 * rotary.inv_freq.numel()

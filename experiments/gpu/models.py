"""Models with random weights, of the shapes of known ones."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.kv_pool import KVShape


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama's sizes.

    Attributes:
        name: what the report calls it.
        hidden, inner, layers, heads, kv_heads, head_dim, vocab: as in its configuration.
        tied: the head has the embeddings' weights.
    """

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    def kv(self, dtype: torch.dtype) -> KVShape:
        """What one token's keys and values look like."""
        return KVShape(self.layers, self.kv_heads, self.head_dim, dtype)

    def weights(self) -> list[tuple[int, int]]:
        """(n, k) of the products of a layer, fused as the decoder does, and of the head."""
        heads = (self.heads + 2 * self.kv_heads) * self.head_dim
        return [
            (heads, self.hidden),
            (self.hidden, self.heads * self.head_dim),
            (2 * self.inner, self.hidden),
            (self.hidden, self.inner),
            (self.vocab, self.hidden),
        ]

    def read_parameters(self) -> int:
        """Parameters that a decode step reads: all but the embeddings, of which it reads rows."""
        sizes = [n * k for n, k in self.weights()]
        return sum(sizes[:4]) * self.layers + sizes[4]


LLAMA_1B = ModelShape("1B", 2048, 8192, 16, 32, 8, 64, 128_256, True)
LLAMA_8B = ModelShape("8B", 4096, 14_336, 32, 32, 8, 128, 128_256, False)
TINY = ModelShape("tiny", 32, 32, 1, 2, 1, 16, 48, True)


def random_model(
    shape: ModelShape, dtype: torch.dtype, device: torch.device, longest: int = 8192
) -> PreTrainedModel:
    """A model whose weights are made on the device, the same ones every time there."""
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=longest,
        tie_word_embeddings=shape.tied,
        rms_norm_eps=1e-5,
    )
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device=device)
    body = model.base_model
    # The angles are no parameters: emptied above, made again here.
    body.rotary_emb = type(body.rotary_emb)(config).to(device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
    model.tie_weights()
    made: PreTrainedModel = model.requires_grad_(False).eval()
    return made

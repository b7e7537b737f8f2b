"""A random two-layer model and a tokenizer of numbered words, made in no time."""

from typing import TypeVar

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM

from engine.kv_pool import KVPool, KVShape
from engine.linear import make_invariant
from engine.runner import ModelRunner

VOCAB = 90
R = TypeVar("R", bound=ModelRunner)


def tiny_runner(num_blocks: int, block_tokens: int, kind: type[R]) -> R:
    """A runner of a random model; the same weights every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval()
    make_invariant(model)
    shape = KVShape(2, 2, 8, model.dtype)
    return kind(model, KVPool(shape, num_blocks, block_tokens, torch.device("cpu")))


def word_tokenizer() -> Tokenizer:
    """Token i is the word ``wi`` after a space; 0 to 2 are special."""
    words = {f"▁w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="▁w0"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["▁w0", "▁w1", "▁w2"])
    return tokenizer

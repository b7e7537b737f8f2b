"""Random models of every supported kind, and the kernels that compute them."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from engine.attention.plan import Segment
from engine.batch import batch_of
from engine.kv_pool import KVPool, KVShape
from engine.native.library import Library, NativeUnavailable, load
from engine.native.model import NativeModel
from engine.native.runner import NativeRunner

VOCAB = 101
BLOCKS = 12  # of each sequence
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 54,
    "intermediate_size": 86,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS = {
    "llama": LlamaConfig(**SIZES),
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama3": LlamaConfig(
        **SIZES,
        rope_parameters={
            **LLAMA3,
            "rope_theta": 1000.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "linear": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 1000.0}
    ),
    "yarn": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 1000.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**{**SIZES, "hidden_size": 96}),
    "qwen3": Qwen3Config(**SIZES),
}


def library() -> Library:
    """The kernels, or a skipped test where they cannot be had."""
    try:
        return load()
    except NativeUnavailable as error:
        pytest.skip(str(error))


def random_model(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same weights every time, biases and norms too, which are 0 and 1 at first."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    return model.to(dtype).eval()


def native(
    model: PreTrainedModel,
    sequences: int = 1,
    block_tokens: int = 16,
    threads: int = 2,
    matrix_unit: bool = True,
) -> NativeRunner:
    """A runner with room for some sequences of BLOCKS blocks each."""
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = KVShape(config.num_hidden_layers, config.num_key_value_heads, dim, model.dtype)
    pool = KVPool(shape, sequences * BLOCKS, block_tokens, torch.device("cpu"))
    return NativeRunner(NativeModel(library(), model, block_tokens, threads, matrix_unit), pool)


def segment(sequence: int, start: int, length: int) -> Segment:
    """Part of a sequence, whose blocks lie in descending order: nothing may rely on theirs."""
    last = (sequence + 1) * BLOCKS - 1
    return Segment(tuple(range(last, last - BLOCKS, -1)), start, length)


def logits(runner: NativeRunner, parts: Sequence[tuple[int, int, Sequence[int]]]) -> list[Tensor]:
    """Run (sequence, start, tokens) parts as one batch; each part's logits, all rows of it."""
    segments = [segment(sequence, start, len(tokens)) for sequence, start, tokens in parts]
    rows = [token for _, _, tokens in parts for token in tokens]
    batch = batch_of(rows, segments, range(len(rows)))
    return list(runner.forward(batch).split([len(tokens) for _, _, tokens in parts]))

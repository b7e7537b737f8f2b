"""Small launches of the kernels at start-up, so that what fails does so before anything serves.

Triton compiles at the first launch: a machine without a C compiler, or a GPU with too
little shared memory for a model's heads, shows then and not before.
"""

import numpy as np
import torch

from engine.attention.plan import SPLIT, Segment
from engine.attention.triton_paged import HeadShape, TileStep, TritonAttention
from engine.batch import Batch, batch_of
from engine.blocks import blocks_for
from engine.cuda.decoder import Decoder
from engine.cuda.draw import draw_tokens
from engine.cuda.layout import lay_out
from engine.cuda.runner import CudaRunner
from engine.cuda.upload import upload
from engine.kv_pool import KVPool, KVShape


def try_decoder(decoder: Decoder, layers: int, block_tokens: int, longest: int) -> None:
    """Run a small prefill and a decode, as far from the beginning as makes a difference.

    Args:
        decoder: the model.
        layers: how many it has.
        block_tokens: of the pools to come.
        longest: tokens of the longest sequence, from 2.

    Raises:
        Exception: whatever Triton, its compilers or the driver object to.
    """
    heads = decoder.shape
    shape = KVShape(layers, heads.kv_heads, heads.dim, decoder.dtype)
    pool = KVPool(shape, _blocks(block_tokens, longest), block_tokens, decoder.device)
    runner = CudaRunner(decoder, pool, 0, longest)
    for batch in _steps(block_tokens, longest):
        runner.forward(batch)


def try_attention(
    heads: HeadShape, dtype: torch.dtype, device: torch.device, block_tokens: int, longest: int
) -> None:
    """Attend as a small prefill and as a decode, without a model: see :func:`try_decoder`."""
    shape = KVShape(1, heads.kv_heads, heads.dim, dtype)
    pool = KVPool(shape, _blocks(block_tokens, longest), block_tokens, device)
    attention = TritonAttention(heads, pool.data)
    for batch in _steps(block_tokens, longest):
        layout = lay_out(batch, heads.tile_positions, block_tokens)
        step = TileStep.of(layout, upload(layout.arrays(), device))
        q = torch.zeros(len(batch.tokens), heads.heads, heads.dim, dtype=dtype, device=device)
        attention.run(0, q, step, 1.0)


def try_draw(vocab: int, device: torch.device) -> None:
    """Choose a token of logits that are all alike: see :func:`try_decoder`."""
    one = torch.zeros(1, device=device)
    draw_tokens(torch.zeros(1, vocab, device=device), one, one, one.long())


def _blocks(block_tokens: int, longest: int) -> int:
    return blocks_for(_reach(longest), block_tokens)


def _steps(block_tokens: int, longest: int) -> list[Batch]:
    reach = _reach(longest)
    table = np.arange(_blocks(block_tokens, longest)).tolist()
    prefill = batch_of([0, 0], [Segment(table, 0, 2)], [1])
    return [prefill, batch_of([0], [Segment(table, reach - 1, 1)], [0])]


def _reach(longest: int) -> int:
    """So many keys that several programs share them, if a sequence ever has so many."""
    return min(longest, SPLIT + 1)

"""What must hold on a GPU: rows do not know of each other, and the numbers are right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention.plan import Segment
from engine.attention.triton_paged import HeadShape, TileStep, TritonAttention
from engine.batch import batch_of
from engine.cuda.decoder import Decoder
from engine.cuda.gemm import Gemms, order_of, usable_tiles
from engine.cuda.graphs import padded_sizes
from engine.cuda.layout import lay_out
from engine.cuda.runner import CudaRunner
from engine.cuda.sampling import CudaSampler
from engine.cuda.upload import upload
from engine.kv_pool import KVPool
from engine.logits import SampleRow
from engine.request import SamplingParams
from engine.sampling import Sampler
from experiments.gpu.models import ModelShape, random_model
from experiments.gpu.report import Result

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where the checks run, and how much of them.

    Attributes:
        device: of everything.
        dtype: of weights, K and V.
        tiny: the smallest sizes that show something.
    """

    device: torch.device
    dtype: torch.dtype
    tiny: bool


class Broken(AssertionError):
    """Something that must hold does not."""


def _must_equal(got: Tensor, expected: Tensor, what: str) -> None:
    if not torch.equal(got, expected):
        differs = got != expected
        most = (got.float() - expected.float()).abs().max()
        raise Broken(f"{what}: {int(differs.sum())} of {got.numel()} differ, by {float(most):.3g}")


def products(place: Place, shapes: Sequence[tuple[int, int]]) -> Result:
    """Every row of a product has the same bits for any number of rows; which tiles may be used."""
    counts = (3, 17) if place.tiny else (1, 2, 3, 8, 16, 17, 33, 64, 65, 128, 200, 513)
    gemms, told = Gemms(), []
    for n, k in dict.fromkeys(shapes):
        generator = torch.Generator(place.device).manual_seed(n)
        weight = torch.randn(n, k, generator=generator, device=place.device).to(place.dtype)
        x = torch.randn(max(counts) + 7, k, generator=generator, device=place.device)
        x = x.to(place.dtype)
        made = gemms.of(weight, None)
        whole = made(x)
        for count in counts:
            for first in (0, 7):
                rows = slice(first, first + count)
                _must_equal(made(x[rows]), whole[rows], f"[{n}, {k}], {count} rows from {first}")
        exact = x[:64].double() @ weight[:2048].double().T
        error = (whole[:64, :2048].double() - exact).abs().max() / exact.abs().max()
        limit = 1e-5 if place.dtype == torch.float32 else 2**-7
        if not error < limit:
            raise Broken(f"[{n}, {k}] is wrong: relative error {float(error):.3g}")
        tiles = [tile.rows for tile in usable_tiles(n, k, weight)]
        segments = order_of(n, k, place.dtype).segments
        told.append(f"[{n}, {k}]: {segments} segments, tiles of {tiles} rows")
    return {"products": told}


def attention(place: Place, dim: int, heads: int, kv_heads: int) -> Result:
    """A row attends with the same bits in a prefill, in chunks, as a decode, and in company."""
    tokens = 40 if place.tiny else 1500
    block = BLOCK
    blocks = -(-tokens // block)
    generator = torch.Generator(place.device).manual_seed(dim)

    def random(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=generator, device=place.device)
        return made.to(place.dtype)

    q, kv = random(tokens, heads, dim), random(blocks * block, 2, kv_heads, dim)
    table = torch.randperm(blocks + 3, generator=torch.Generator().manual_seed(0))[:blocks].tolist()
    pool = torch.full((1, blocks + 3, block, 2, kv_heads, dim), float("nan"), device=place.device)
    pool = pool.to(place.dtype)
    pool[0, table] = kv.view(blocks, block, 2, kv_heads, dim)
    layer = TritonAttention(HeadShape.of(heads, kv_heads, dim), pool)

    def run(parts: Sequence[tuple[int, int]]) -> list[Tensor]:
        segments = [Segment(table, start, length) for start, length in parts]
        batch = batch_of([0] * sum(length for _, length in parts), segments, [])
        layout = lay_out(batch, layer.shape.tile_positions, block)
        step = TileStep.of(layout, upload(layout.arrays(), place.device))
        rows = torch.cat([q[start : start + length] for start, length in parts])
        return list(layer.run(0, rows, step, dim**-0.5).split([length for _, length in parts]))

    (whole,) = run([(0, tokens)])
    last = tokens - 1
    for start, length in ((0, 5), (31, 8), (last - 20, 21)):
        (chunk,) = run([(start, length)])
        _must_equal(chunk, whole[start : start + length], f"head size {dim}, chunk at {start}")
    for position in sorted({0, 1, 15, 16, min(63, last), last // 2, last}):
        (decode,) = run([(position, 1)])
        _must_equal(decode[0], whole[position], f"head size {dim}, decode at {position}")
    for count in (2, 5) if place.tiny else (2, 9, 33, 200):
        many = run([(last - i % 50, 1) for i in range(count)])
        for i, row in enumerate(many):
            _must_equal(row[0], whole[last - i % 50], f"head size {dim}, {count} decodes, {i}")
    k, v = (
        x.repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for x in kv[:tokens].unbind(1)
    )
    exact = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None].float(), k[None].float(), v[None].float(), is_causal=True
    )[0].transpose(0, 1)
    error = float((whole.float() - exact).abs().max())
    if not error < (1e-3 if place.dtype == torch.float32 else 0.05):
        raise Broken(f"head size {dim} is wrong: error {error:.3g}")
    return {"largest error": error}


def model(place: Place, shape: ModelShape) -> Result:
    """Logits have the same bits whole, in chunks, as graphs and beside others, and are right."""
    made = random_model(shape, place.dtype, place.device)
    length = 9 if place.tiny else 200
    tokens = [(i * 7919 + 17) % shape.vocab for i in range(length)]
    with torch.inference_mode():
        theirs = made(input_ids=torch.tensor([tokens], device=place.device)).logits[0].float()
    company = (2,) if place.tiny else (2, 8, 33, 64, 130)
    per = -(-length // BLOCK)
    pool = KVPool(shape.kv(place.dtype), per * (max(company) + 1), BLOCK, place.device)
    decoder = Decoder(made, length + BLOCK)
    runner = CudaRunner(decoder, pool, max(company), length)
    eager = CudaRunner(decoder, pool, 0, length)

    def segment(number: int, start: int, count: int) -> Segment:
        return Segment(range(number * per, (number + 1) * per), start, count)

    last = length - 1
    whole = runner.forward(batch_of(tokens, [segment(0, 0, length)], range(length)))
    cut = length // 2
    runner.forward(batch_of(tokens[:cut], [segment(1, 0, cut)], []))
    rest = batch_of(tokens[cut:], [segment(1, cut, length - cut)], range(length - cut))
    _must_equal(runner.forward(rest), whole[cut:], f"a prefill cut at {cut}")
    one = batch_of(tokens[last:], [segment(1, last, 1)], [0])
    _must_equal(runner.forward(one)[0], whole[last], "a decode as a graph")
    _must_equal(eager.forward(one)[0], whole[last], "a decode without a graph")
    for count in company:
        others = [segment(i, 0, 1) for i in range(2, count + 1)]
        batch = batch_of(
            [*range(1, count), tokens[last]], [*others, segment(1, last, 1)], range(count)
        )
        as_graph = runner.forward(batch)
        _must_equal(as_graph[-1], whole[last], f"a decode beside {count - 1} others")
        _must_equal(as_graph, eager.forward(batch), f"graphs of {count} rows")
        mixed = batch_of(
            [*tokens, *range(1, count)], [segment(1, 0, length), *others], range(length)
        )
        _must_equal(runner.forward(mixed), whole, f"a prefill beside {count - 1} others")
    scale = float(theirs.std())
    return {
        "largest difference from transformers, in standard deviations of the logits": float(
            (whole - theirs).abs().max()
        )
        / scale,
        "same likeliest token as transformers": float(
            (whole.argmax(1) == theirs.argmax(1)).float().mean()
        ),
        "graphs": ", ".join(map(str, padded_sizes(max(company)))),
    }


def sampling(place: Place, vocab: int) -> Result:
    """Tokens are those that the CPU chooses from the same logits, but for nearly equal scores."""
    count = 6 if place.tiny else 128
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(1)) * 3
    logits = logits.to(place.dtype).float()
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "plain": {"temperature": 1.0},
        "top_k": {"temperature": 0.8, "top_k": 40},
        "top_p": {"temperature": 1.0, "top_p": 0.9},
        "min_p": {"temperature": 1.2, "min_p": 0.05},
    }
    told: Result = {}
    cpu, here = Sampler(vocab), CudaSampler(vocab, place.device)
    on_device = logits.to(place.device)
    for kind, params in kinds.items():
        rows = [SampleRow(SamplingParams(**params), seed, [1], [2]) for seed in range(count)]
        expected, got = cpu.sample(logits, rows), here.sample(on_device, rows)
        same = sum(a == b for a, b in zip(expected, got, strict=True)) / count
        told[f"{kind}: same tokens as the CPU"] = same
        if same < (1.0 if kind == "greedy" else 0.97):
            raise Broken(f"{kind}: only {same:.1%} of the tokens are the CPU's")
        alone = [here.sample(on_device[i : i + 1], rows[i : i + 1])[0] for i in range(0, count, 5)]
        if alone != got[::5]:
            raise Broken(f"{kind}: a row alone chooses another token than in a batch")
    return told

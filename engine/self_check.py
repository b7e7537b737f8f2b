"""The start-up check: on this machine, does a row's company change its bits?

Everything that keeps bits the same was measured somewhere; what this machine does
is asked here, of the very model that will serve, before it serves.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from engine.attention.plan import QUERY_TILE, SPLIT, Segment
from engine.batch import batch_of
from engine.blocks import blocks_for
from engine.kv_pool import KVPool, KVShape
from engine.runner import Runner

COMPANY = (2, 3, 8, 33, 64)  # sizes of the batches that the probe row is put into
_PROBE_LEN = QUERY_TILE + 7  # crosses a query tile, ends inside one
_GPU_PROBE_LEN = SPLIT + 7  # crosses the keys that several programs may share, too
_NEIGHBOUR_LEN = 19
_SHORT_LEN = 12  # so short that its decode shares the neighbours' calls of the kernel


class Variance(RuntimeError):
    """The logits of a position depend on what it was computed with.

    Attributes:
        case: what was compared with computing the sequence alone and whole.
        elements: how many of the position's logits differ.
        largest: the largest difference.
    """

    def __init__(self, case: str, elements: int, largest: float) -> None:
        super().__init__(case, elements, largest)
        self.case = case
        self.elements = elements
        self.largest = largest

    def __str__(self) -> str:
        return (
            f"this machine does not keep the same bits: {self.case} changes {self.elements} "
            f"logits, by {self.largest:.3g} at most"
        )


class _Probe:
    """A probe sequence, and neighbours, in a small pool of their own."""

    def __init__(
        self,
        make_runner: Callable[[KVPool], Runner],
        shape: KVShape,
        device: torch.device,
        block_tokens: int,
        length: int,
    ) -> None:
        self._length = length
        own = blocks_for(length, block_tokens)
        each = blocks_for(min(length, _NEIGHBOUR_LEN + 1), block_tokens)
        firsts = [0, *range(own, own + each * max(COMPANY), each)]
        self._tables = [tuple(range(*ends)) for ends in pairwise(firsts)]
        self._runner = make_runner(KVPool(shape, firsts[-1], block_tokens, device))

    def tokens(self, sequence: int, vocab: int) -> list[int]:
        """A fixed, arbitrary prompt, another for each sequence."""
        return [(sequence * 7919 + i * 104_729 + 17) % vocab for i in range(self._length)]

    def neighbour(self, sequence: int, vocab: int) -> list[int]:
        """A short prompt, which leaves room for a decode behind it."""
        length = min(1 + (sequence * 13) % _NEIGHBOUR_LEN, self._length - 1)
        return self.tokens(sequence, vocab)[:length]

    def segment(self, sequence: int, start: int, length: int) -> Segment:
        return Segment(self._tables[sequence], start, length)

    def last_logits(self, parts: list[tuple[int, int, list[int]]]) -> Tensor:
        """Run (sequence, start, tokens) parts as one batch; logits of the last row of each."""
        rows: list[int] = []
        wanted: list[int] = []
        for _, _, tokens in parts:
            rows.extend(tokens)
            wanted.append(len(rows) - 1)
        segments = [self.segment(sequence, start, len(own)) for sequence, start, own in parts]
        return self._runner.forward(batch_of(rows, segments, wanted))


def check_same_bits(
    make_runner: Callable[[KVPool], Runner],
    shape: KVShape,
    device: torch.device,
    vocab: int,
    block_tokens: int = 16,
    longest: int = _GPU_PROBE_LEN,
) -> None:
    """Compare a sequence alone and whole with the same one in chunks and in company.

    Args:
        make_runner: makes a runner of the model over a pool.
        shape: of the model's keys and values.
        device: where the model is.
        vocab: number of token ids.
        block_tokens: of the pools that the model is to be run over.
        longest: tokens of the longest sequence that will be served, from 2.

    Raises:
        Variance: some way of computing it gives other bits.
    """
    length = min(_GPU_PROBE_LEN if device.type == "cuda" else _PROBE_LEN, longest)
    probe = _Probe(make_runner, shape, device, block_tokens, length)
    own = probe.tokens(0, vocab)
    last = length - 1
    short_len = min(_SHORT_LEN, length)
    short = probe.last_logits([(0, 0, own[:short_len])])[0]
    alone = probe.last_logits([(0, 0, own)])[0]
    cuts = (1, QUERY_TILE - 3, SPLIT - 3, last)
    for cut in (cut for cut in cuts if cut <= last):
        probe.last_logits([(0, 0, own[:cut])])
        _compare(alone, probe.last_logits([(0, cut, own[cut:])])[0], f"a prefill cut at {cut}")
    for size in COMPANY:
        others = range(1, size)
        prefills = [(i, 0, probe.neighbour(i, vocab)) for i in others]
        together = probe.last_logits([*prefills, (0, 0, own)])[-1]
        _compare(alone, together, f"a prefill beside {size - 1} others")
        decodes = [(i, len(tokens), [tokens[0]]) for i, _, tokens in prefills]
        for whole, at in ((alone, last), (short, short_len - 1)):
            together = probe.last_logits([*decodes, (0, at, own[at : at + 1])])[-1]
            _compare(whole, together, f"a decode beside {size - 1} others")


def _compare(alone: Tensor, other: Tensor, case: str) -> None:
    if not torch.equal(alone, other):
        difference = (alone - other).abs()
        raise Variance(case, int((difference != 0).sum()), float(difference.max()))

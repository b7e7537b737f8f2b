"""The start-up check: on this machine, does a row's company change its bits?

Everything that keeps bits the same was measured somewhere; what this machine does
is asked here, of the very model that will serve, before it serves.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention.plan import QUERY_TILE, Segment
from engine.batch import batch_of
from engine.kv_pool import KVPool, KVShape
from engine.runner import Runner

COMPANY = (2, 3, 8, 33, 64)  # sizes of the batches that the probe row is put into
_PROBE_LEN = QUERY_TILE + 7  # crosses a query tile, ends inside one
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
    ) -> None:
        self._per_sequence = -(-(_PROBE_LEN + 1) // block_tokens)
        blocks = self._per_sequence * max(COMPANY)
        self._runner = make_runner(KVPool(shape, blocks, block_tokens, device))

    def tokens(self, sequence: int, vocab: int) -> list[int]:
        """A fixed, arbitrary prompt, another for each sequence."""
        return [(sequence * 7919 + i * 104_729 + 17) % vocab for i in range(_PROBE_LEN)]

    def segment(self, sequence: int, start: int, length: int) -> Segment:
        first = sequence * self._per_sequence
        return Segment(tuple(range(first, first + self._per_sequence)), start, length)

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
) -> None:
    """Compare a sequence alone and whole with the same one in chunks and in company.

    Args:
        make_runner: makes a runner of the model over a pool.
        shape: of the model's keys and values.
        device: where the model is.
        vocab: number of token ids.
        block_tokens: of the pools that the model is to be run over.

    Raises:
        Variance: some way of computing it gives other bits.
    """
    probe = _Probe(make_runner, shape, device, block_tokens)
    own = probe.tokens(0, vocab)
    last = _PROBE_LEN - 1
    short = probe.last_logits([(0, 0, own[:_SHORT_LEN])])[0]
    alone = probe.last_logits([(0, 0, own)])[0]
    for cut in (1, QUERY_TILE - 3, last):
        probe.last_logits([(0, 0, own[:cut])])
        _compare(alone, probe.last_logits([(0, cut, own[cut:])])[0], f"a prefill cut at {cut}")
    for size in COMPANY:
        others = range(1, size)
        prefills = [(i, 0, probe.tokens(i, vocab)[: 1 + (i * 13) % _NEIGHBOUR_LEN]) for i in others]
        together = probe.last_logits([*prefills, (0, 0, own)])[-1]
        _compare(alone, together, f"a prefill beside {size - 1} others")
        decodes = [(i, len(tokens), [tokens[0]]) for i, _, tokens in prefills]
        for whole, at in ((alone, last), (short, _SHORT_LEN - 1)):
            together = probe.last_logits([*decodes, (0, at, own[at : at + 1])])[-1]
            _compare(whole, together, f"a decode beside {size - 1} others")


def _compare(alone: Tensor, other: Tensor, case: str) -> None:
    if not torch.equal(alone, other):
        difference = (alone - other).abs()
        raise Variance(case, int((difference != 0).sum()), float(difference.max()))

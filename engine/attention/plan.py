"""AttentionPlan: which rows of a step attend to which slots, the same for every layer.

A step's rows are the tokens whose K and V it computes: the tokens of prefill
chunks and one token a decode.  Bits must not depend on how rows came together,
so everything that a kernel could let them depend on is a function of the row's
position alone:

- a row at position p attends over ``key_length(p)`` keys, the real ones and then
  null ones that are masked;
- rows of a chunk run in query tiles of 64 that are aligned to absolute positions,
  and ``key_length`` is constant over a tile;
- a row that runs alone (a decode) is padded to the smallest tile that gives the same
  bits as the full one, which the backend finds by trying.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_TILE = 64
SPLIT = 512
"""Keys that Triton's kernel sums apart."""
# Keys that one call for decodes reads at most: K and V are gathered in float32, so this
# bounds memory. How many sequences share a call changes no bit.
MAX_GROUP_KEYS = 1 << 16
_NEVER = float("-inf")


def key_length(position: int) -> int:
    """How many keys the row at ``position`` is given: padded, a function of position only.

    A multiple of 64, at most an eighth more than needed beyond 512, so that decodes
    of similar lengths share one call.
    """
    needed = position + 1
    step = max(QUERY_TILE, 1 << max(0, needed.bit_length() - 4))
    return -(-needed // step) * step


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence that a step computes.

    Attributes:
        block_table: ids of the sequence's blocks, covering start + length tokens.
        start: position of the first token.
        length: number of tokens, >= 1.
    """

    block_table: Sequence[int]
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single rows with the same key length.

    Attributes:
        rows: [n] indices into the step's rows.
        tables: [n, blocks] block tables, null beyond the row's block.
        keys: how many keys each row is given.
        mask: [n, 1, 1, keys] float32, 0 or -inf, added to the scores.
    """

    rows: Tensor
    tables: Tensor
    keys: int
    mask: Tensor


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Rows of a chunk that share one aligned tile of 64 positions.

    Attributes:
        first_row: index of the first of them among the step's rows.
        rows: how many.
        offset: position of the first within the tile.
        start: position where the tile begins, a multiple of 64.
        keys: key length of the tile.
    """

    first_row: int
    rows: int
    offset: int
    start: int
    keys: int


@dataclass(frozen=True, slots=True)
class ChunkTiles:
    """A chunk of two or more tokens: its sequence's blocks and its query tiles.

    Attributes:
        table: [1, blocks], null beyond the chunk's end.
        tiles: in order of position; the last has the most keys.
    """

    table: Tensor
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's attention.

    Attributes:
        fresh: [n] blocks that get their first row of this owner in this step.
        slots: [rows] where each row's K and V are stored.
        positions: [rows] position of each row in its sequence.
        decodes: the single rows, grouped by key length.
        chunks: the longer segments.
    """

    fresh: Tensor
    slots: Tensor
    positions: Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkTiles, ...]


class AttentionPlanner:
    """Makes an :class:`AttentionPlan` from a step's segments."""

    def __init__(self, block_tokens: int, null_block: int, device: torch.device) -> None:
        self._block_tokens = block_tokens
        self._null_block = null_block
        self._device = device

    def plan(self, segments: Iterable[Segment]) -> AttentionPlan:
        """Lay the segments out as rows, in the order given."""
        slots: list[int] = []
        positions: list[int] = []
        fresh: list[int] = []
        chunks: list[ChunkTiles] = []
        singles: dict[int, list[tuple[int, Segment]]] = {}
        size = self._block_tokens
        for segment in segments:
            row, table = len(positions), segment.block_table
            span = range(segment.start, segment.start + segment.length)
            positions.extend(span)
            slots.extend(table[p // size] * size + p % size for p in span)
            fresh.extend(table[-(-span.start // size) : -(-span.stop // size)])
            if segment.length == 1:
                singles.setdefault(key_length(segment.start), []).append((row, segment))
            else:
                chunks.append(self._chunk(segment, row))
        return AttentionPlan(
            fresh=self._tensor(fresh),
            slots=self._tensor(slots),
            positions=self._tensor(positions),
            decodes=tuple(
                self._group(keys, members)
                for keys in sorted(singles)
                for members in _batches(singles[keys], max(1, MAX_GROUP_KEYS // keys))
            ),
            chunks=tuple(chunks),
        )

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device)

    def _table(self, segment: Segment, keys: int) -> list[int]:
        """The blocks that hold the sequence's tokens so far, then null ones for ``keys``."""
        used = -(-(segment.start + segment.length) // self._block_tokens)
        blocks = -(-keys // self._block_tokens)
        return [*segment.block_table[:used], *[self._null_block] * (blocks - used)]

    def _group(self, keys: int, members: list[tuple[int, Segment]]) -> DecodeGroup:
        rows = self._tensor([row for row, _ in members])
        tables = self._tensor([self._table(segment, keys) for _, segment in members])
        own = self._tensor([segment.start for _, segment in members])
        hidden = torch.arange(keys, device=self._device) > own[:, None]
        mask = torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, _NEVER)
        return DecodeGroup(rows, tables, keys, mask[:, None, None])

    def _chunk(self, segment: Segment, first_row: int) -> ChunkTiles:
        end = segment.start + segment.length
        tiles = []
        position = segment.start
        while position < end:
            offset = position % QUERY_TILE
            rows = min(QUERY_TILE - offset, end - position)
            row = first_row + position - segment.start
            keys = key_length(position)
            tiles.append(QueryTile(row, rows, offset, position - offset, keys))
            position += rows
        table = self._table(segment, tiles[-1].keys)
        return ChunkTiles(self._tensor([table]), tuple(tiles))


def _batches(members: list[tuple[int, Segment]], size: int) -> Iterator[list[tuple[int, Segment]]]:
    for start in range(0, len(members), size):
        yield members[start : start + size]

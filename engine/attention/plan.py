"""AttentionPlan: which rows of a step attend to which slots, the same for every layer.

A step's rows are the tokens whose K and V it computes: the tokens of prefill
chunks and one token a decode.  Bits must not depend on how rows came together,
so everything that a kernel could let them depend on is a function of the row's
position alone:

- a row at position p attends over ``key_length(p)`` keys, the real ones and then
  null ones that are masked;
- rows of a chunk run in query tiles of 64 that are aligned to absolute positions,
  and ``key_length`` is constant over a tile;
- a row that runs alone (a decode) is repeated to fill the smallest tile that gives
  the same bits as the full one, which the backend finds by trying.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_TILE = 64
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
        key_slots: [n, keys] slots to read, null beyond the row's position.
        mask: [n, 1, 1, keys] float32, 0 or -inf, added to the scores.
    """

    rows: Tensor
    key_slots: Tensor
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
    """A chunk of two or more tokens: the slots of its sequence and its query tiles.

    Attributes:
        key_slots: [keys of the last tile], null beyond the chunk's end.
        tiles: in order of position.
    """

    key_slots: Tensor
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's attention.

    Attributes:
        slots: [rows] where each row's K and V are stored.
        positions: [rows] position of each row in its sequence.
        decodes: the single rows, grouped by key length.
        chunks: the longer segments.
    """

    slots: Tensor
    positions: Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkTiles, ...]


class AttentionPlanner:
    """Makes an :class:`AttentionPlan` from a step's segments."""

    def __init__(self, block_tokens: int, null_slot: int, device: torch.device) -> None:
        self._block_tokens = block_tokens
        self._null_slot = null_slot
        self._device = device

    def plan(self, segments: Iterable[Segment]) -> AttentionPlan:
        """Lay the segments out as rows, in the order given."""
        slots: list[Tensor] = []
        positions: list[Tensor] = []
        chunks: list[ChunkTiles] = []
        singles: dict[int, list[tuple[int, Segment]]] = {}
        row = 0
        for segment in segments:
            at = torch.arange(segment.start, segment.start + segment.length)
            positions.append(at)
            if segment.length == 1:
                singles.setdefault(key_length(segment.start), []).append((row, segment))
                slots.append(self._slots([segment], segment.start + 1)[0, -1:])
            else:
                chunk, own = self._chunk(segment, row)
                chunks.append(chunk)
                slots.append(own)
            row += segment.length
        return AttentionPlan(
            slots=torch.cat(slots).to(self._device),
            positions=torch.cat(positions).to(self._device),
            decodes=tuple(self._group(keys, singles[keys]) for keys in sorted(singles)),
            chunks=tuple(chunks),
        )

    def _slots(self, segments: Sequence[Segment], keys: int) -> Tensor:
        """[n, keys] slots of the sequences' positions 0.., null beyond their ends."""
        blocks = -(-keys // self._block_tokens)
        null_block = self._null_slot // self._block_tokens
        tables = torch.full((len(segments), blocks), null_block)
        for i, segment in enumerate(segments):
            table = torch.tensor(segment.block_table[:blocks])
            tables[i, : len(table)] = table
        offsets = torch.arange(self._block_tokens)
        slots = (tables[:, :, None] * self._block_tokens + offsets).flatten(1)[:, :keys]
        ends = torch.tensor([s.start + s.length for s in segments])
        return slots.masked_fill(torch.arange(keys) >= ends[:, None], self._null_slot)

    def _group(self, keys: int, members: list[tuple[int, Segment]]) -> DecodeGroup:
        rows = torch.tensor([row for row, _ in members])
        slots = self._slots([segment for _, segment in members], keys)
        mask = torch.zeros(slots.shape).masked_fill(slots == self._null_slot, _NEVER)
        to = self._device
        return DecodeGroup(rows.to(to), slots.to(to), mask[:, None, None].to(to))

    def _chunk(self, segment: Segment, first_row: int) -> tuple[ChunkTiles, Tensor]:
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
        key_slots = self._slots([segment], tiles[-1].keys)[0]
        own = key_slots[segment.start : end]
        return ChunkTiles(key_slots.to(self._device), tuple(tiles)), own

"""BatchBuilder: turns each step's plan into a Batch, and keeps what the next one needs again.

A decode costs the same however long its sequence is: tables are appended to where a block
was added, and a step that decodes the same sequences as the one before finds all but
their newest tokens ready.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.batch import Batch, Int32s, Scored
from engine.blocks import BlockSpace, blocks_for
from engine.plan import Chunk, ScheduleOutput


class Sequences(Protocol):
    """What a batch takes from sequences; a Scheduler with its blocks has it."""

    def tokens(self, id: int) -> Sequence[int]:
        """Prompt and generated tokens so far: a list that grows."""
        ...

    def prompt_len(self, id: int) -> int:
        """How many of them are the prompt."""
        ...

    @property
    def blocks(self) -> BlockSpace:
        """Gives the block table of each sequence."""
        ...


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence of the last batch.

    Attributes:
        tokens, table: its own lists, which grow.
        seat: its row of the array of tables.
        filled: blocks of ``table`` that are there.
    """

    tokens: Sequence[int]
    table: Sequence[int]
    seat: int
    filled: int = 0


class BatchBuilder:
    """Makes the batches of one scheduler's plans, in order.

    While it makes one, the batch before may be under way, none before that. So a seat that is
    given up with a batch is not taken again with the same one.
    """

    def __init__(self, sequences: Sequences, max_seqs: int, max_tokens: int) -> None:
        """Seat nobody.

        Args:
            sequences: where the plans come from.
            max_seqs: sequences of a batch at most.
            max_tokens: tokens of the longest sequence.
        """
        self._sequences = sequences
        width = blocks_for(max_tokens, sequences.blocks.block_tokens)
        self._array = np.zeros((2 * max_seqs, width), dtype=np.int32)
        self._free = list(range(2 * max_seqs))
        self._rows: dict[int, _Row] = {}
        # Of the last batch, and of the next one too if that has the same decodes and no chunks.
        self._chunks = 0
        self._decode: list[int] = []
        self._decoding: list[_Row] = []
        self._tables: list[Sequence[int]] = []
        self._seats: Int32s = np.zeros(0, dtype=np.int32)

    def prepare(
        self,
        plan: ScheduleOutput,
        tops: Mapping[int, int] | None = None,
        awaited: Sequence[int] = (),
    ) -> Batch:
        """Take from the scheduler what the step needs; it may change while the model runs.

        Args:
            plan: the step; the batches before the last one have been computed.
            tops: for each request whose prompt is to be scored, the likeliest tokens to tell.
            awaited: those whose next token the last one chooses, in the order of its rows,
                if that is still being computed.
        """
        changed = self._chunks or plan.prefill or plan.preempted
        if changed or plan.decode != self._decode:
            self._seat_all(plan)
        decoding = self._decoding
        for row in [row for row in decoding if len(row.table) > row.filled]:
            self._copy(row)
        tokens: list[int] = []
        wanted: list[int] = []
        scored: list[Scored] = []
        for number, chunk in enumerate(plan.prefill):
            if tops and chunk.id in tops:
                scored.append(self._scored(number, chunk, len(tokens), tops[chunk.id]))
            whole = self._rows[chunk.id].tokens
            tokens += whole[chunk.start : chunk.start + chunk.len]
            if chunk.last:
                wanted.append(len(tokens) - 1)
        rows = len(tokens) + len(decoding)
        wanted += range(len(tokens), rows)
        tokens += [row.tokens[-1] for row in decoding]
        starts = [chunk.start for chunk in plan.prefill]
        starts += [len(row.tokens) - 1 for row in decoding]
        lengths = np.ones(len(starts), dtype=np.int32)
        lengths[: len(plan.prefill)] = [chunk.len for chunk in plan.prefill]
        positions, sources = np.array(starts, dtype=np.int32), None
        if awaited:
            sources = _sources(rows, plan.decode, awaited)
            # Their newest token is one more than is known.
            positions[len(plan.prefill) :] += sources[rows - len(decoding) :] >= 0
        return Batch(
            np.array(tokens, dtype=np.int64),
            positions,
            lengths,
            self._tables,
            self._seats,
            self._array,
            np.array(wanted, dtype=np.int64),
            scored,
            sources,
        )

    def _scored(self, segment: int, chunk: Chunk, row: int, top: int) -> Scored:
        prompt_len = self._sequences.prompt_len(chunk.id)
        end = min(chunk.start + chunk.len + 1, prompt_len)
        targets = tuple(self._sequences.tokens(chunk.id)[chunk.start + 1 : end])
        return Scored(segment, row, targets, top)

    def _seat_all(self, plan: ScheduleOutput) -> None:
        """Give each sequence of the plan a seat; those that are not in it lose theirs."""
        rows, left = self._rows, list[int]()
        ids = [*[chunk.id for chunk in plan.prefill], *plan.decode]
        present = set(ids)
        # One that was preempted may be back in this same plan, over other blocks.
        for id in [*[id for id in rows if id not in present], *plan.preempted]:
            if (row := rows.pop(id, None)) is not None:
                left.append(row.seat)
        for id in [id for id in ids if id not in rows]:
            table = self._sequences.blocks.block_table(id)
            rows[id] = _Row(self._sequences.tokens(id), table, self._free.pop())
        self._free += left  # only now: the last batch may be under way, and reads its seats
        chunked = [rows[chunk.id] for chunk in plan.prefill]
        for row in chunked:
            self._copy(row)
        self._chunks = len(chunked)
        self._decode = list(plan.decode)
        self._decoding = [rows[id] for id in plan.decode]
        everyone = chunked + self._decoding
        self._tables = [row.table for row in everyone]
        self._seats = np.array([row.seat for row in everyone], dtype=np.int32)

    def _copy(self, row: _Row) -> None:
        """Bring the array up to what has been added to a table."""
        filled, row.filled = row.filled, len(row.table)
        self._array[row.seat, filled : row.filled] = row.table[filled:]


def _sources(rows: int, decode: Sequence[int], awaited: Sequence[int]) -> Int32s:
    """For each row, the last ones being decodes, where its token is among those awaited, or -1."""
    place = {id: row for row, id in enumerate(awaited)}
    sources = np.full(rows, -1, dtype=np.int32)
    sources[rows - len(decode) :] = [place.get(id, -1) for id in decode]
    return sources

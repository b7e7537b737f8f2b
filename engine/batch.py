"""Batch: one step's input, detached from the scheduler that planned it.

Arrays, so that a runner need not walk over sequences: what a step costs to hand over does
not grow with how long they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.attention.plan import Segment

Int32s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Int64s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Tables: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows of a prompt whose log-probabilities were asked for.

    Attributes:
        segment: which one of the batch they begin.
        row: the first of them.
        targets: for each row the token that follows it in the prompt.
        top: likeliest tokens to tell with each.
    """

    segment: int
    row: int
    targets: tuple[int, ...]
    top: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input: segments of sequences, one after the other, decodes last.

    Attributes:
        tokens: [rows] the ids of all rows.
        starts: [segments] position of the first token of each segment.
        lengths: [segments] how many rows it has, >= 1.
        tables: [segments] ids of its sequence's blocks, covering start + length tokens.
            They may grow while the model runs, at their ends.
        seats: [segments] which row of ``block_tables`` begins with the same ids.
        block_tables: [seats, width] valid until the next batch is made; what lies beyond a
            sequence's blocks means nothing.
        wanted: [wanted] rows whose logits are needed: the last one of each chunk that ends
            its prompt, then each decode.
        scored: rows of prompts that are needed besides.
        sources: [rows] for a row whose token the step before chooses, which of that step's
            wanted rows it is, else -1; None if all are in ``tokens``. Where it is not -1,
            ``tokens`` has any token of the vocabulary.
        chosen: int64 [wanted of the step before], the tokens that it chose, which a device
            may still be computing; there when the batch is computed.
    """

    tokens: Int64s
    starts: Int32s
    lengths: Int32s
    tables: Sequence[Sequence[int]]
    seats: Int32s
    block_tables: Tables
    wanted: Int64s
    scored: Sequence[Scored] = ()
    sources: Int32s | None = None
    chosen: Tensor | None = None

    @property
    def segments(self) -> list[Segment]:
        """The segments one by one."""
        parts = zip(self.tables, self.starts.tolist(), self.lengths.tolist(), strict=True)
        return [Segment(*part) for part in parts]

    def ends(self) -> Int64s:
        """For each segment, the row behind its last one: int64 [segments]."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def positions(self) -> Int32s:
        """[rows] the position of each row in its sequence."""
        if len(self.tokens) == len(self.starts):
            return self.starts
        begins = self.ends() - self.lengths
        first = np.repeat(self.starts - begins, self.lengths)
        return (first + np.arange(len(self.tokens))).astype(np.int32)

    def filled(self, ids: Tensor, sources: Tensor) -> Tensor:
        """Put the tokens that the step before chose in their places, without waiting for them.

        Args:
            ids: [rows] ``tokens``, where the model is.
            sources: [rows], at the same place.
        """
        if self.chosen is None:
            raise ValueError("the step before has not been computed")
        found = self.chosen.to(ids.device, ids.dtype, non_blocking=True)
        return torch.where(sources < 0, ids, found[sources.clamp(min=0).long()])

    def part(self, segment: int, wanted: Sequence[int], scored: Sequence[Scored]) -> "Batch":
        """One segment as a batch of its own; ``wanted`` and ``scored`` count its own rows."""
        end = int(self.ends()[segment])
        one, rows = slice(segment, segment + 1), slice(end - int(self.lengths[segment]), end)
        return Batch(
            self.tokens[rows],
            self.starts[one],
            self.lengths[one],
            self.tables[one],
            self.seats[one],
            self.block_tables,
            np.array(wanted, dtype=np.int64),
            scored,
            None if self.sources is None else self.sources[rows],
            self.chosen,
        )


def batch_of(
    tokens: Sequence[int],
    segments: Sequence[Segment],
    wanted: Sequence[int],
    scored: Sequence[Scored] = (),
) -> Batch:
    """A batch without a scheduler: each segment has a seat of its own, in order.

    Args:
        tokens: [rows] the ids of all rows.
        segments: the parts that they make up, in order.
        wanted: rows whose logits are needed.
        scored: rows of prompts that are needed besides.
    """
    tables = [segment.block_table for segment in segments]
    array = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int32)
    for seat, table in enumerate(tables):
        array[seat, : len(table)] = table
    return Batch(
        np.array(tokens, dtype=np.int64),
        np.array([segment.start for segment in segments], dtype=np.int32),
        np.array([segment.length for segment in segments], dtype=np.int32),
        tables,
        np.arange(len(tables), dtype=np.int32),
        array,
        np.array(wanted, dtype=np.int64),
        scored,
    )

"""One step's work between plan and results: forward, sample, and who failed at it.

A row that fails (a logit that is not a number, an index out of range) must not take
the others with it.  Since a row's bits do not depend on its company, the way out is
simple: when a batch fails as a whole, run its sequences one by one and keep those
that work.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.runner import Batch, ModelRunner
from engine.sampling import Sampler, SampleRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step's sequences.

    Attributes:
        tokens: the sampled token of each sequence that was to be sampled from.
        errors: why a sequence failed, by its id.
        broken: how many sequences there were if the forward pass of each raised, which is
            not their doing, most likely; else 0.
    """

    tokens: dict[int, int]
    errors: dict[int, str]
    broken: int = 0


class StepExecutor:
    """Runs batches so that one bad sequence fails alone."""

    def __init__(self, runner: ModelRunner, sampler: Sampler) -> None:
        self._runner = runner
        self._sampler = sampler

    def run(self, batch: Batch, ids: Sequence[int], rows: Sequence[SampleRow]) -> StepResult:
        """Compute the batch and sample.

        Args:
            batch: the step's input.
            ids: [segments] the sequence that each segment belongs to.
            rows: [wanted] how to sample each wanted row.

        Returns:
            For every wanted row a token or an error; an error too for a segment that
            failed though nothing was wanted of it.
        """
        errors: dict[int, str] = {}
        try:
            logits = self._runner.forward(batch)
            kept = list(range(len(rows)))
        except Exception as error:
            if len(ids) == 1:
                errors[ids[0]] = reason_of(error)
                return StepResult({}, errors, broken=1)
            logger.exception("a batch of %d sequences failed; running them one by one", len(ids))
            logits, kept = self._one_by_one(batch, ids, errors)
        broken = len(errors) if len(errors) == len(ids) else 0
        if not kept:
            return StepResult({}, errors, broken)
        wanted = _wanted_segments(batch)
        tokens: dict[int, int] = {}
        for row, token in zip(kept, self._sample(logits, [rows[i] for i in kept]), strict=True):
            id = ids[wanted[row]]
            if isinstance(token, int):
                tokens[id] = token
            else:
                errors[id] = reason_of(token)
        return StepResult(tokens, errors, broken)

    def _sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int | Exception]:
        """A token or an error for each row."""
        try:
            return [*self._sampler.sample(logits, rows)]
        except Exception as error:
            if len(rows) == 1:
                return [error]
            logger.exception("sampling %d rows failed; sampling them one by one", len(rows))
            return [self._sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]

    def _one_by_one(
        self, batch: Batch, ids: Sequence[int], errors: dict[int, str]
    ) -> tuple[Tensor, list[int]]:
        """Return the logits that could be had, and which wanted rows they are."""
        row_of = {segment: row for row, segment in enumerate(_wanted_segments(batch))}
        logits: list[Tensor] = []
        kept: list[int] = []
        begin = 0
        for i, segment in enumerate(batch.segments):
            end = begin + segment.length
            wanted = [segment.length - 1] if i in row_of else []
            try:
                out = self._runner.forward(Batch(batch.tokens[begin:end], [segment], wanted))
            except Exception as error:
                errors[ids[i]] = reason_of(error)
            else:
                if wanted:
                    logits.append(out)
                    kept.append(row_of[i])
            begin = end
        # Wanted rows are in the order of their segments, so ``kept`` ascends.
        return torch.cat(logits) if logits else torch.empty(0), kept


def _wanted_segments(batch: Batch) -> list[int]:
    """For each wanted row, the segment that it ends."""
    ends: dict[int, int] = {}
    end = 0
    for i, segment in enumerate(batch.segments):
        end += segment.length
        ends[end - 1] = i
    return [ends[row] for row in batch.wanted]


def reason_of(error: Exception) -> str:
    """What a request is told of its error."""
    return f"{type(error).__name__}: {error}"

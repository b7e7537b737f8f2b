"""One step's work between plan and results: forward, sample, and who failed at it.

A row that fails (a logit that is not a number, an index out of range) must not take
the others with it.  Since a row's bits do not depend on its company, the way out is
simple: when a batch fails as a whole, run its sequences one by one and keep those
that work.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Scored
from engine.logits import SampleRow
from engine.logprobs import token_logprobs
from engine.runner import Runner
from engine.sampled import Known, Sampled
from engine.sampling import Sampler
from engine.submission import TokenLogprobs

logger = logging.getLogger(__name__)

SCORED_ROWS: Final = 64
"""Rows of a prompt whose logits are there at the same time: a vocabulary each is much."""

Scores: TypeAlias = list[TokenLogprobs]


@dataclass(slots=True)
class StepResult:
    """What became of a step's sequences, by their ids.

    Attributes:
        tokens: the sampled token of each sequence that was to be sampled from.
        errors: why a sequence failed.
        broken: how many sequences there were if the forward pass of each raised, which is
            not their doing, most likely; else 0.
        logprobs: how likely the token was, if the sequence asked for it.
        prompts: how likely the next tokens of the prompt were, for each scored row.
        misled: those for which the next step, if it was launched already, goes on from another
            token: what it makes of them is void.
        awaited: whether anybody still waited for it when it was there; all may have ended since
            it was launched.
    """

    tokens: dict[int, int]
    errors: dict[int, str]
    broken: int = 0
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompts: dict[int, Scores] = field(default_factory=dict)
    misled: set[int] = field(default_factory=set)
    awaited: bool = True

    def void(self, ids: Iterable[int]) -> None:
        """Forget what became of some sequences."""
        for id in ids:
            for told in (self.tokens, self.errors, self.logprobs):
                told.pop(id, None)


class Launched:
    """A step that a device may still be computing."""

    def __init__(self, result: StepResult, ending: Sequence[int], sampled: Sampled | None) -> None:
        """Complete ``result`` with what is ``sampled``, if anything, for sequences ``ending``."""
        self._result = result
        self._ending = ending
        self._sampled = sampled

    def wait(self) -> StepResult:
        """Return what became of it, as soon as that is known; also when asked again."""
        sampled, ending = self._sampled, self._ending
        if sampled is None:
            return self._result
        tokens, errors = self._result.tokens, self._result.errors
        chosen: Sequence[int | Exception]
        try:
            chosen = sampled.fetch()
        except Exception as error:
            logger.exception("what was sampled cannot be had")
            chosen = [error] * len(ending)
        self._sampled = None
        for id, token in zip(ending, chosen, strict=True):
            if isinstance(token, Exception):
                errors.setdefault(id, reason_of(token))
            elif not errors or id not in errors:
                tokens[id] = token
        self._result.misled.update([ending[row] for row in sampled.changed])
        return self._result


class StepExecutor:
    """Runs batches so that one bad sequence fails alone."""

    def __init__(self, runner: Runner, sampler: Sampler) -> None:
        self._runner = runner
        self._sampler = sampler
        self._last: Sampled = Known(())

    def launch(
        self,
        batch: Batch,
        ids: Sequence[int],
        ending: Sequence[int],
        rows: Sequence[SampleRow],
        positions: Sequence[int] | None = None,
    ) -> Launched:
        """Compute the batch and sample, or at least tell the device to.

        Args:
            batch: the step's input. Tokens that the step before chooses are those of the call
                before, whose result need not be known.
            ids: [segments] the sequence that each segment belongs to.
            ending: [wanted] the sequence that each wanted row belongs to.
            rows: [wanted] how to sample each wanted row.
            positions: [wanted] of the draws, where not all tokens before them are known.

        Returns:
            For every wanted row a token or an error; an error too for a segment that
            failed though nothing was wanted of it.
        """
        errors: dict[int, str] = {}
        if batch.sources is not None:
            batch = replace(batch, chosen=self._last.tokens)
        try:
            logits, scores = self._compute(batch)
        except Exception as error:
            if len(ids) == 1:
                errors[ids[0]] = reason_of(error)
                self._last = Known([0] * len(ending))
                return Launched(StepResult({}, errors, broken=1), (), None)
            logger.exception("a batch of %d sequences failed; running them one by one", len(ids))
            logits, scores = self._one_by_one(batch, ids, errors)
        result = StepResult({}, errors, len(errors) if len(errors) == len(ids) else 0)
        for segment, told in scores.items():
            if isinstance(told, Exception):
                errors[ids[segment]] = reason_of(told)
            else:
                result.prompts[ids[segment]] = told
        if not rows:
            return Launched(result, (), None)
        self._last = sampled = self._sample(logits, rows, positions)
        launched = Launched(result, ending, sampled)
        if any(row.params.logprobs is not None for row in rows):
            self._score_tokens(logits, ending, rows, launched.wait())
        return launched

    def _compute(self, batch: Batch) -> tuple[Tensor, dict[int, Scores | Exception]]:
        """Return the wanted logits, and what is known of each segment that is scored."""
        hidden = self._runner.hidden(batch)
        logits = self._runner.logits(hidden, batch.wanted)
        return logits, {part.segment: self._score(hidden, part) for part in batch.scored}

    def _score(self, hidden: Tensor, part: Scored) -> Scores | Exception:
        """Tell how likely a prompt's tokens are, or why that cannot be told."""
        told: Scores = []
        try:
            for begin in range(0, len(part.targets), SCORED_ROWS):
                targets = part.targets[begin : begin + SCORED_ROWS]
                first = part.row + begin
                logits = self._runner.logits(hidden, range(first, first + len(targets)))
                told.extend(
                    token_logprobs(row, token, part.top)
                    for row, token in zip(logits, targets, strict=True)
                )
        except Exception as error:
            logger.exception("a prompt's log-probabilities failed")
            return error
        return told

    def _score_tokens(
        self, logits: Tensor, ids: Sequence[int], rows: Sequence[SampleRow], result: StepResult
    ) -> None:
        """Tell how likely the tokens were that somebody asks about."""
        errors, tokens = result.errors, result.tokens
        for i, row in enumerate(rows):
            if (top := row.params.logprobs) is not None and (id := ids[i]) in tokens:
                try:
                    result.logprobs[id] = token_logprobs(logits[i], tokens[id], top)
                except Exception as error:
                    errors[id] = reason_of(error)
                    del tokens[id]

    def _sample(
        self, logits: Tensor, rows: Sequence[SampleRow], positions: Sequence[int] | None
    ) -> Sampled:
        """A token or an error for each row."""
        try:
            return self._sampler.start(logits, rows, positions)
        except Exception as error:
            if len(rows) == 1:
                return Known([error])
            logger.exception("sampling %d rows failed; sampling them one by one", len(rows))
        chosen: list[int | Exception] = []
        for i, row in enumerate(rows):
            at = None if positions is None else positions[i : i + 1]
            chosen += self._sample(logits[i : i + 1], [row], at).fetch()
        return Known(chosen)

    def _one_by_one(
        self, batch: Batch, ids: Sequence[int], errors: dict[int, str]
    ) -> tuple[Tensor, dict[int, Scores | Exception]]:
        """Return what could be had: the wanted logits, any of those that failed, and scores."""
        row_of = {segment: row for row, segment in enumerate(_wanted_segments(batch))}
        part_of = {part.segment: replace(part, segment=0, row=0) for part in batch.scored}
        logits = torch.zeros(len(row_of), self._sampler.vocab)
        scores: dict[int, Scores | Exception] = {}
        for i, length in enumerate(batch.lengths.tolist()):
            wanted = [length - 1] if i in row_of else []
            scored = [part_of[i]] if i in part_of else []
            try:
                out, told = self._compute(batch.part(i, wanted, scored))
            except Exception as error:
                errors[ids[i]] = reason_of(error)
                continue
            if scored:
                scores[i] = told[0]
            if wanted:
                logits = logits.to(out.device)
                logits[row_of[i]] = out[0]
        return logits, scores


def _wanted_segments(batch: Batch) -> list[int]:
    """For each wanted row, the segment that it ends."""
    found: list[int] = np.searchsorted(batch.ends(), batch.wanted, side="right").tolist()
    return found


def reason_of(error: Exception) -> str:
    """What a request is told of its error."""
    return f"{type(error).__name__}: {error}"

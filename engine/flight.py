"""Flight: one step on its way, from its plan until its results have been told."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from engine.batch import Batch
from engine.live import Live
from engine.plan import ScheduleOutput
from engine.step import Launched, StepExecutor, StepResult, reason_of
from engine.submission import Delta
from engine.swap import Copy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that is to be computed.

    Attributes:
        plan: what it computes.
        batch: the same for the runner.
        ids: [segments] the requests.
        chunked: [chunks] those of which a part of the prompt is computed.
        ending: [wanted] the requests that get a token.
        lives: [wanted] the same requests.
        positions: [wanted] of their draws, if not all tokens before them are known.
        copies: what goes to host memory and comes from there first.
        misled: requests that it goes on with from a token that turned out to be another. What
            it makes of them is void, and they are planned again.
    """

    plan: ScheduleOutput
    batch: Batch
    ids: list[int]
    chunked: list[Live]
    ending: list[int]
    lives: list[Live]
    positions: list[int] | None
    copies: list[Copy]
    misled: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls, plan: ScheduleOutput, batch: Batch, known: Mapping[int, Live], copies: list[Copy]
    ) -> Self:
        """A step of known requests."""
        chunked = [known[chunk.id] for chunk in plan.prefill]
        ending = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        ids = [chunk.id for chunk in plan.prefill] + plan.decode
        lives = [known[id] for id in ending]
        positions = None
        if batch.sources is not None:
            unknown = (batch.sources[batch.wanted] >= 0).tolist()
            positions = [
                len(live.generated) + more for live, more in zip(lives, unknown, strict=True)
            ]
        return cls(plan, batch, ids, chunked, ending, lives, positions, copies)

    def starting(self) -> list[Live]:
        """Those of which no step has computed anything so far."""
        return [live for live in (*self.chunked, *self.lives) if not live.started]

    def launch(self, executor: StepExecutor) -> Launched:
        """Compute it, or have a device do so."""
        rows = [live.row for live in self.lives]
        return executor.launch(self.batch, self.ids, self.ending, rows, self.positions)

    def take(self, result: StepResult) -> set[int]:
        """Give each request its token; return whom it ends.

        A request whose grammar fails joins the errors. One that had ended before gets nothing:
        the step was launched before that was known.
        """
        result.void(self.misled)
        for chunk, live in zip(self.plan.prefill, self.chunked, strict=True):
            if chunk.id in result.prompts:
                live.score(chunk.start, result.prompts[chunk.id])
        stops: set[int] = set()
        tokens = result.tokens
        for live in self.lives:
            if (token := tokens.get(live.id)) is None:
                continue
            if live.finish is not None:
                del tokens[live.id]
                continue
            try:
                if live.take(token):
                    stops.add(live.id)
            except Exception as error:
                logger.exception("a request's token cannot be taken")
                result.errors[live.id] = reason_of(error)
                del tokens[live.id]
        return stops


@dataclass(frozen=True, slots=True)
class Landed:
    """A step whose tokens the scheduler has, and whose texts are still to be made.

    Attributes:
        lives: the requests that may have got a token, in row order.
        result: their tokens.
        ids, deltas: what there is to tell, and of whom.
        over: those for whom that is the last.
    """

    lives: list[Live]
    result: StepResult
    ids: list[int] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    over: list[int] = field(default_factory=list)

    def fail(self, live: Live, reason: str) -> None:
        """Tell of a request that it failed."""
        self.ids.append(live.id)
        self.deltas.append(Delta(live.key, error=reason, detail=live.detail()))
        self.over.append(live.id)

    def tell(self) -> None:
        """Make text of the tokens; a request whose text fails is told that."""
        tokens, told = self.result.tokens, self.result.logprobs
        ids, deltas = self.ids, self.deltas
        for live in self.lives:
            id = live.id
            if (token := tokens.get(id)) is None:
                continue
            try:
                text = live.tell(token)
            except Exception as error:
                logger.exception("a request's text cannot be made")
                self.fail(live, reason_of(error))
                continue
            detail = None
            if told or live.queued_s is not None or live.prompt is not None:
                detail = live.detail(told.get(id), moved=True)
            ids.append(id)
            deltas.append(Delta(live.key, (token,), text, live.finish, None, detail))
            if live.finish is not None:
                self.over.append(id)

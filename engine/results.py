"""Results: what the rows of a step mean for the requests that they belong to.

A row computes K and V up to some position; if that is a request's newest token, it gives the
next one. A plan is made ahead as if each row of the step in flight did so and its request went
on: that step's rows are expected then, before they are taken.
"""

from collections.abc import Collection, Mapping

from engine.plan import Plan, RequestState
from engine.request import FinishReason
from engine.roster import Roster


class Results:
    """Takes the results of plans, one after the other.

    Attributes:
        recomputed: tokens computed again after a preemption.
    """

    def __init__(self, roster: Roster) -> None:
        """Tell ``roster`` who has ended."""
        self.recomputed = 0
        self._roster = roster

    def expect(self, plan: Plan) -> None:
        """Count the rows of a plan in flight as computed, and their tokens, which are unknown."""
        for state, end in plan.chunk_rows:
            if not state.gone:
                self._compute(state, end)
                state.awaits = int(end == len(state.tokens))
        for state in plan.decode_rows:
            state.flying = state.awaits = 1
            state.computed += 1

    def take(
        self,
        plan: Plan,
        tokens: Mapping[int, int],
        stops: Collection[int],
        expected: bool = False,
    ) -> tuple[list[RequestState], dict[int, FinishReason]]:
        """Take the results of a plan.

        Args:
            plan: those of its requests that are gone are left alone.
            tokens: the sampled token of each request. One without, of whom there should be
                one, stays as it was.
            stops: those that it ends.
            expected: :meth:`expect` has been called; every request has its token then.

        Returns:
            Who grew, in row order, and who of them ended.
        """
        grown: list[RequestState] = []
        ended: dict[int, FinishReason] = {}
        for state in self._sampled(plan, tokens, expected):
            if state.gone:
                continue
            id = state.id
            if (token := tokens.get(id)) is None:
                if expected:
                    raise ValueError(f"request {id} has neither a token nor been aborted")
                continue
            so_far = state.tokens
            state.computed = total = len(so_far)
            state.flying = state.awaits = 0
            so_far.append(token)
            grown.append(state)
            if id in stops or total + 1 >= state.end:
                ended[id] = FinishReason.STOP if id in stops else FinishReason.LENGTH
                self._roster.leave(id)
        return grown, ended

    def _sampled(self, plan: Plan, tokens: Mapping[int, int], expected: bool) -> list[RequestState]:
        """Take what is computed of prompts; return who may get a token, in row order."""
        sampled: list[RequestState] = []
        for state, end in plan.chunk_rows:
            if state.gone:
                continue
            last = end == len(state.tokens)
            if not expected:
                if last and state.id not in tokens:
                    continue
                self._compute(state, end)
            state.flying = 0
            self._roster.computed(state)
            if last:
                sampled.append(state)
        return sampled + plan.decode_rows

    def _compute(self, state: RequestState, end: int) -> None:
        """Count a chunk up to ``end`` as computed, or in flight."""
        self.recomputed += max(0, min(end, state.high) - state.computed)
        state.flying = end - state.computed
        state.computed = end

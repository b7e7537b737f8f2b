"""Newcomers: who of those that wait starts in a step. The scheduler's third phase.

They start in rank order, up to the first that does not fit. Two kinds let others go first:

- One that cannot start leaves a gap, which smaller ones may fill (:mod:`engine.gaps`).
- One most of which is being computed for another request waits for that, since to compute
  it as well would cost every step of the two. Those behind it start past it, but only
  beside what is kept for it as if it ran already: a seat, the blocks that it lacks now, and
  budget for what it will have to compute. So it starts as soon as it can, and nobody else
  is held up by its waiting more than by its running.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from engine.blocks import BlockSpace, Found, NoCapacity, blocks_for
from engine.gaps import WINDOW, choose_filler
from engine.plan import Plan, RequestState
from engine.prefill import PrefillPolicy, granted
from engine.roster import Roster
from engine.scheduler_config import SchedulerConfig
from engine.victims import choose_victims

PATIENCE: Final = 16
"""Steps after which a request waits no longer for what others compute of it. It finds what is
there by then, so little is computed twice; without a limit, longer ones could come for ever."""


@dataclass(slots=True)
class _Kept:
    """What is kept for those who wait for others' blocks, in one step.

    Attributes:
        states: they themselves, each with a seat; they are out of the queue meanwhile.
        blocks: what they lack now, as if nothing came.
        tokens: what is left to compute when all has come.
    """

    states: list[RequestState] = field(default_factory=list)
    blocks: int = 0
    tokens: int = 0


class Newcomers:
    """Decides who starts. Between two calls it remembers nothing."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockSpace,
        roster: Roster,
        policy: PrefillPolicy,
    ) -> None:
        """Seat who waits in ``roster``.

        Args:
            config: the limits.
            blocks: the memory.
            roster: who waits and who runs.
            policy: how prompts are cut.
        """
        self._config = config
        self._blocks = blocks
        self._roster = roster
        self._policy = policy
        self._kept = _Kept()

    def admit(self, plan: Plan, step: int, ahead: bool = False) -> Plan:
        """Seat those who can start in this step.

        Args:
            plan: has all of those who run already.
            step: its number, from 1.
            ahead: nobody makes way and no gap is filled: more room may be there before the
                plan is carried out.

        Returns:
            The plan, or a new one if requests that it would have computed made way.
        """
        if not self._roster.waiting:  # as in most steps
            return plan
        self._kept = _Kept()
        try:
            return self._admit(plan, step, ahead)
        finally:
            self._roster.take_back(self._kept.states)

    def _admit(self, plan: Plan, step: int, ahead: bool) -> Plan:
        while (state := self._roster.head()) is not None:
            if self._closed(plan):
                return plan
            found = self._roster.look_up(state)
            if self._waits(state, found, step):
                if self._set_aside(state, plan, found):
                    continue
            elif self._admitted(state, plan, found):
                # A policy that grants nothing now leaves a prefill in progress for the next step.
                length = self._granted(state, plan, state.computed)
                if length == 0:
                    return plan
                plan.add_chunk(state, length)
                continue
            elif not ahead and (lighter := self._make_way(state, plan, found)) is not None:
                plan = lighter
                continue
            if not ahead:
                self._fill_gaps(plan)
            return plan
        return plan

    # ---- those who wait for others' blocks -------------------------------------------

    def _waits(self, state: RequestState, found: Found, step: int) -> bool:
        """Whether a request is better off when others have computed what they do of it."""
        if not found.coming:
            return False
        if state.waits_until == 0:
            state.waits_until = step + PATIENCE
        return step < state.waits_until

    def _set_aside(self, state: RequestState, plan: Plan, found: Found) -> bool:
        """Keep for the head of the queue what it needs; False if it could not start anyway."""
        kept, cost = self._kept, self._cost(state, found)
        if len(kept.states) >= WINDOW or self._full or cost > self._free:
            return False
        self._roster.take_out_head()
        kept.states.append(state)
        kept.blocks += cost
        there = found.tokens + found.coming
        kept.tokens += granted(self._policy, state, plan, there, kept.tokens)
        return True

    # ---- limits ----------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        return len(self._roster.running) + len(self._kept.states) >= self._config.max_seqs

    @property
    def _free(self) -> int:
        """Blocks that are free and not kept for anybody."""
        return self._blocks.free_blocks - self._kept.blocks

    def _closed(self, plan: Plan) -> bool:
        """Whether nobody can start in this step, whatever the newcomer is."""
        return (self._full or plan.budget <= self._kept.tokens) and (
            self._config.admission_preemption == 0
        )

    def _granted(self, state: RequestState, plan: Plan, computed: int) -> int:
        """Tokens that a newcomer may take of the step.

        Who starts past others must get as much as it takes in any later step, since all
        that run go on before newcomers: else it took then what is kept for them now.
        """
        length = granted(self._policy, state, plan, computed, self._kept.tokens)
        if self._kept.states:
            remaining = len(state.tokens) - computed
            most = self._policy.chunk_len(remaining, self._config.max_batch_tokens, alone=False)
            return length if length == most else 0
        return length

    def _size(self, state: RequestState) -> int:
        return blocks_for(len(state.tokens), self._blocks.block_tokens)

    def _cost(self, state: RequestState, found: Found) -> int:
        """Free blocks that it takes: what others hold costs nothing."""
        return self._size(state) - len(found.held)

    # ---- who starts ------------------------------------------------------------------

    def _admitted(self, state: RequestState, plan: Plan, found: Found) -> bool:
        """Seat the head of the queue, if seats, budget and blocks allow."""
        if self._full or self._granted(state, plan, found.tokens) == 0:
            return False
        if self._cost(state, found) > self._free:
            return False
        try:
            self._roster.seat_head()
        except NoCapacity:
            return False
        return True

    def _make_way(self, newcomer: RequestState, plan: Plan, found: Found) -> Plan | None:
        """Preempt the tail for the head of the queue, if that lets it start in this step.

        By now all who rank higher have what they need of this step, so what a newcomer
        would find is known exactly. Victims that are in the plan themselves leave it.

        Returns:
            The plan without the victims, None if there are none.
        """
        victims = choose_victims(
            newcomer,
            self._roster.running,
            self._blocks,
            self._config,
            found.held,
            kept_seats=len(self._kept.states),
            kept_blocks=self._kept.blocks,
        )
        if not victims:
            return None
        lighter = plan.without(victims)
        if self._granted(newcomer, lighter, found.tokens) == 0:
            return None
        for victim in victims:
            self._roster.make_way(victim)
            lighter.preempted.append(victim.id)
        return lighter

    def _fill_gaps(self, plan: Plan) -> None:
        """Admit smaller requests than the head of the queue, which cannot start now.

        Not in a step that preempted somebody: who comes then is soon preempted itself.
        """
        config, roster = self._config, self._roster
        if config.max_passes == 0 or plan.preempted:
            return
        while not self._full and self._free > 0:
            waiting = roster.first(WINDOW)
            state = choose_filler(waiting, partial(self._fits, plan), self._size, config)
            if state is None:
                return
            roster.seat_filler(state, waiting)
            length = self._granted(state, plan, state.computed)
            if length == 0:
                return
            plan.add_chunk(state, length)

    def _fits(self, plan: Plan, state: RequestState) -> bool:
        """Whether a request that waits could start; its blocks are counted without a cache's."""
        if self._size(state) > self._free or plan.budget <= self._kept.tokens:
            return False
        found = self._roster.look_up(state)
        return not found.coming and self._granted(state, plan, found.tokens) > 0

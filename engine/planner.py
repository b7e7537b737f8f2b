"""Planner: what a step computes, in three phases.

Decodes first, then prompts in progress, then newcomers, everywhere in rank order.
"""

from engine.blocks import BlockSpace, NoCapacity
from engine.newcomers import Newcomers
from engine.plan import Plan, RequestState
from engine.prefill import PrefillPolicy, StepBudget, granted
from engine.roster import Roster
from engine.scheduler_config import SchedulerConfig


class Planner:
    """Seats, preempts and grows tables as it plans; keeps nothing of a plan itself."""

    def __init__(
        self, config: SchedulerConfig, blocks: BlockSpace, roster: Roster, policy: PrefillPolicy
    ) -> None:
        """Plan for the requests of a roster.

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
        self._newcomers = Newcomers(config, blocks, roster, policy)
        # A policy may also limit what a step takes of all prompts together.
        self._pace = policy if isinstance(policy, StepBudget) else None

    def next(self, step: int, ahead: bool = False) -> Plan:
        """Plan a step: the three phases.

        Args:
            step: its number.
            ahead: results are still to come. Nobody is preempted, nobody makes way and no
                gap is filled; where memory is short, the plan is not open.
        """
        plan = Plan(self._config.max_batch_tokens)
        prefilling = self._decodes(plan, ahead)
        if self._pace is not None:
            plan.budget = min(plan.budget, self._pace.step_budget(len(plan.decode)))
        moved = self._prefills(plan, prefilling)
        plan.open = plan.open and moved
        return self.admit(plan, step, ahead) if moved else plan

    def _decodes(self, plan: Plan, ahead: bool) -> list[RequestState]:
        """Phase 1: every decode that budget and memory allow, highest rank first.

        Args:
            plan: gets them.
            ahead: nobody is preempted; a plan that lacks memory for somebody is not open.

        Returns:
            The prefills in progress that it passed, in rank order. It passes all of
            them unless the budget ran out.
        """
        running, budget = self._roster.running, plan.budget
        decode, decode_rows = plan.decode, plan.decode_rows
        prefilling: list[RequestState] = []
        place, lacking = 0, False
        # A victim is always the tail, so nothing before ``place`` moves.
        while place < len(running) and len(decode) < budget:
            state = running[place]
            place += 1
            total = len(state.tokens) + state.awaits
            if total - state.computed > 1:
                prefilling.append(state)
            elif total <= state.reach or (
                # One that has enough is only seen here when the step in flight ends it.
                total < state.end and self._make_room(state, total, plan, ahead)
            ):
                decode.append(state.id)
                decode_rows.append(state)
            else:
                lacking = lacking or total < state.end
        plan.open = place == len(running) and not lacking
        plan.budget -= len(plan.decode)
        return prefilling

    def _make_room(self, state: RequestState, total: int, plan: Plan, ahead: bool) -> bool:
        """Grow a decode's table, preempting from the tail; False if it was itself the tail."""
        while True:
            try:
                self._blocks.append_slot(state.id, total)
            except NoCapacity:
                if ahead:
                    return False
                victim = self._roster.running[-1]
                self._roster.preempt(victim)
                plan.preempted.append(victim.id)
                if victim is state:
                    return False
            else:
                self._roster.measure(state, total)
                return True

    def _prefills(self, plan: Plan, prefilling: list[RequestState]) -> bool:
        """Phase 2: the next chunk of every prefill in progress, in rank order.

        Returns:
            Whether all of them moved; if not, nobody may be admitted past them.
        """
        for state in prefilling:
            length = granted(self._policy, state, plan, state.computed)
            if length == 0:
                return False
            plan.add_chunk(state, length)
        return True

    def admit(self, plan: Plan, step: int, ahead: bool = False) -> Plan:
        """Phase 3: seats for those who wait, as :meth:`engine.newcomers.Newcomers.admit` says."""
        return self._newcomers.admit(plan, step, ahead)

"""Planner: what a step computes, in three phases.

Decodes first, then prompts in progress, then newcomers, everywhere in rank order.
"""

from functools import partial

from engine.blocks import BlockSpace, Found, NoCapacity, blocks_for
from engine.gaps import WINDOW, choose_filler
from engine.plan import Plan, RequestState
from engine.prefill import PrefillPolicy, StepBudget
from engine.roster import Roster
from engine.scheduler_config import SchedulerConfig
from engine.victims import choose_victims


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
        # A policy may also limit what a step takes of all prompts together.
        self._pace = policy if isinstance(policy, StepBudget) else None

    def next(self, ahead: bool = False) -> Plan:
        """Plan a step: the three phases.

        Args:
            ahead: results are still to come. Nobody is preempted, nobody makes way and no
                gap is filled; where memory is short, the plan is not open.
        """
        plan = Plan(self._config.max_batch_tokens)
        prefilling = self._decodes(plan, ahead)
        if self._pace is not None:
            plan.budget = min(plan.budget, self._pace.step_budget(len(plan.decode)))
        moved = self._prefills(plan, prefilling)
        plan.open = plan.open and moved
        return self.admit(plan, ahead) if moved else plan

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
        prefilling: list[RequestState] = []
        place, lacking = 0, False
        # A victim is always the tail, so nothing before ``place`` moves.
        while place < len(running) and len(plan.decode) < budget:
            state = running[place]
            place += 1
            total = len(state.tokens) + state.awaits
            if total - state.computed > 1:
                prefilling.append(state)
            elif total <= state.reach or (
                # One that has enough is only seen here when the step in flight ends it.
                total < state.end and self._make_room(state, total, plan, ahead)
            ):
                plan.decode.append(state.id)
                plan.decode_rows.append(state)
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
            length = self._granted(state, plan, state.computed)
            if length == 0:
                return False
            plan.add_chunk(state, length)
        return True

    def admit(self, plan: Plan, ahead: bool = False) -> Plan:
        """Phase 3: seats for those who wait, in rank order, up to the first that does not fit.

        Smaller ones may fill what it leaves, if the config lets them. Ahead, nobody makes
        way and no gap is filled: more room may be there before the plan is carried out.

        Returns:
            The plan, or a new one if requests that it would have computed made way.
        """
        while (state := self._roster.head()) is not None:
            if self._closed(plan):
                return plan
            found = self._roster.look_up(state)
            if found.coming:
                # Cheaper than to compute it as well; and no newcomer may pass the head.
                return plan
            if self._admitted(state, plan, found):
                # A policy that grants nothing now leaves a prefill in progress for the next step.
                length = self._granted(state, plan, state.computed)
                if length == 0:
                    return plan
                plan.add_chunk(state, length)
            elif ahead:
                return plan
            elif (lighter := self._make_way(state, plan, found)) is not None:
                plan = lighter
            else:
                self._fill_gaps(plan)
                return plan
        return plan

    def _closed(self, plan: Plan) -> bool:
        """Whether nobody can start in this step, whatever the newcomer is."""
        full = len(self._roster.running) >= self._config.max_seqs or plan.budget <= 0
        return full and self._config.admission_preemption == 0

    def _admitted(self, state: RequestState, plan: Plan, found: Found) -> bool:
        """Seat the head of the queue, if seats, budget and blocks allow."""
        full = len(self._roster.running) >= self._config.max_seqs
        if full or self._granted(state, plan, found.tokens) == 0:
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
        running = self._roster.running
        victims = choose_victims(newcomer, running, self._blocks, self._config, found.held)
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
        while len(roster.running) < config.max_seqs and self._blocks.free_blocks > 0:
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
        if self._size(state) > self._blocks.free_blocks or plan.budget <= 0:
            return False
        found = self._roster.look_up(state)
        return not found.coming and self._granted(state, plan, found.tokens) > 0

    def _size(self, state: RequestState) -> int:
        return blocks_for(len(state.tokens), self._blocks.block_tokens)

    def _granted(self, state: RequestState, plan: Plan, computed: int) -> int:
        if plan.budget <= 0:
            return 0
        remaining = len(state.tokens) - computed
        return self._policy.chunk_len(remaining, plan.budget, plan.empty)

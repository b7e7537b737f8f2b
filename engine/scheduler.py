"""The scheduler: what the next step computes, and what its results mean.

One call of ``schedule`` plans a step, one call of ``on_step`` takes its results. The
plan is continuous batching (Yu et al., Orca, OSDI 2022) over paged memory, with
preemption by recomputation (Kwon et al., PagedAttention, SOSP 2023): decodes first,
then prompts in progress, then newcomers, everywhere by one rank.

Let ``n`` be the tokens a request has so far and ``c`` those whose K and V are computed.
It is decoding when n - c = 1 and prefilling when n - c > 1. A row of the plan computes
tokens c..end; if it reaches n, the runner samples the next token from it.

Invariants between calls, besides the roster's:
- A running request has room for n tokens, except that a decoding one may lack the slot
  for its newest token.
- Only the tail of the running list is ever preempted: for the blocks that a higher-ranked
  decode needs, or for a newcomer that ranks before it, and that only so often. So the
  highest-ranked request goes on until it ends, and every admitted request ends.

Not thread-safe: whoever drives it serialises the calls.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from engine.admission import sequence_limit
from engine.blocks import BlockSpace, Found, NoCapacity, blocks_for
from engine.gaps import WINDOW, choose_filler
from engine.plan import Chunk, Plan, RequestState, ScheduleOutput
from engine.prefill import PrefillPolicy, StepBudget, WholePrompt
from engine.rank import SchedPolicy, rank_of
from engine.request import (
    AdmitError,
    EmptyPrompt,
    Finished,
    FinishReason,
    InvalidParam,
    NeverFits,
    PromptTooLong,
    QueueFull,
    Request,
    StepOutput,
    Token,
)
from engine.roster import Roster
from engine.scheduler_config import SchedulerConfig, SchedulerStats
from engine.swap import Copy, SwapSpace
from engine.victims import choose_victims

__all__ = [
    "AdmitError",
    "Chunk",
    "EmptyPrompt",
    "FinishReason",
    "Finished",
    "InvalidParam",
    "NeverFits",
    "PromptTooLong",
    "QueueFull",
    "Request",
    "SchedPolicy",
    "ScheduleOutput",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "StepOutput",
    "Token",
]


class Scheduler:
    """Decides who runs, who waits and who is preempted. See the module's invariants."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockSpace,
        prefill_policy: PrefillPolicy | None = None,
        clock: Callable[[], int] | None = None,
        swap: SwapSpace | None = None,
    ) -> None:
        """Start with nothing to do.

        Args:
            config: the limits.
            blocks: the memory; nobody else may allocate from it.
            prefill_policy: how prompts are cut; WholePrompt if None.
            swap: host memory for the blocks of who is preempted; without it they are computed
                again. Whoever runs a plan first makes the copies of :meth:`take_copies`.
            clock: gives the arrival tick of requests that bring none; counts steps if None.
        """
        self.config = config
        self.blocks = blocks
        self._prefill_policy = WholePrompt() if prefill_policy is None else prefill_policy
        # A policy may also limit what a step takes of all prompts together.
        pace = self._prefill_policy
        self._pace = pace if isinstance(pace, StepBudget) else None
        self._steps = 0
        self._clock = clock or (lambda: self._steps)
        self.swap = swap
        self._roster = Roster(blocks, swap)
        self._plan = Plan(0)
        self._flying: Plan | None = None
        self._next_id = 0
        self._recomputed = 0

    # ---- requests come and go -------------------------------------------------------

    def add(self, request: Request) -> int:
        """Queue a request and return its id; the lists it brings are copied.

        Raises:
            AdmitError, InvalidParam: what can never run, as ``sequence_limit`` says.
            QueueFull: max_waiting new requests wait already.
        """
        end = self.check(request)
        config = self.config
        id = self._next_id
        self._next_id += 1
        arrival = self._clock() if request.arrival is None else request.arrival
        rank = rank_of(config.policy, config.aging_steps, request.priority, arrival, id)
        tokens = [*request.prompt, *request.generated]
        state = RequestState(id, rank, tokens, len(request.prompt), end, request.priority)
        state.salt, state.skip_cache = request.salt, request.skip_cache
        self._roster.join(state)
        return id

    def check(self, request: Request) -> int:
        """Return the length at which ``request`` has enough; queue nothing.

        Raises:
            AdmitError, InvalidParam: what :meth:`add` would raise now.
        """
        config = self.config
        end = sequence_limit(request, config.max_model_len, self.blocks)
        fresh = self._roster.fresh
        if fresh >= config.max_waiting:
            raise QueueFull(fresh, config.max_waiting)
        return end

    def abort(self, id: int) -> None:
        """Drop a request, wherever it is; an unknown or ended one is left alone.

        Its blocks are free at once. What a step in flight makes of it is ignored.
        """
        self._roster.leave(id)

    # ---- one step -------------------------------------------------------------------

    def schedule(self) -> ScheduleOutput:
        """Plan the next step; an earlier plan without results is given up.

        Returns:
            At most max_batch_tokens tokens (or one longer whole prompt) of at most
            max_seqs requests.
        """
        if self._flying is not None:
            raise RuntimeError("the results of the step in flight are still to come")
        self._steps += 1
        return self._decided(self._next_plan(ahead=False))

    def schedule_ahead(self) -> None:
        """Plan the step after the one in flight, as if each of its rows gave a token and went on.

        In flight is the last step that was planned. Once its results have been taken,
        :meth:`resume` tells what has become of this plan. Nobody is preempted in it: who
        has to go is decided when it is known who has ended. A second call changes nothing.
        """
        if self._flying is not None:
            return
        self._flying = flying = self._plan
        for state, end in flying.chunk_rows:
            if not state.gone:
                self._compute(state, end)
                state.awaits = int(end == len(state.tokens))
        for state in flying.decode_rows:
            state.flying = state.awaits = 1
            state.computed += 1
        self._steps += 1
        self._plan = self._next_plan(ahead=True)

    def resume(self) -> ScheduleOutput:
        """Return the plan that was made ahead, less those who have ended since.

        Who has come since, or can start now, is in it as well.
        """
        plan = self._plan
        if not plan.open:  # who is left out of it may find room by now
            return self._decided(self._next_plan(ahead=False))
        rows = [*[state for state, _ in plan.chunk_rows], *plan.decode_rows]
        if gone := [state for state in rows if state.gone]:
            plan = plan.without(gone)
        return self._decided(self._plan_admissions(plan))

    def on_step(self, outputs: Iterable[StepOutput]) -> list[Token | Finished]:
        """Take the results of the last plan.

        Outputs for requests that the plan does not sample from, or that were aborted
        since, are ignored. A row that should have an output and has none stays as it
        was and is planned again; if the next step has been planned ahead, it must have
        been aborted.

        Returns:
            In row order a Token for each output, followed by Finished where it ended.
        """
        tokens: dict[int, int] = {}
        stops: set[int] = set()
        for output in outputs:
            tokens[output.id] = output.token
            if output.stop:
                stops.add(output.id)
        grown, ended = self._take(tokens, stops)
        events: list[Token | Finished] = []
        for state in grown:
            events.append(Token(state.id, tokens[state.id]))
            if (reason := ended.get(state.id)) is not None:
                events.append(Finished(state.id, reason))
        return events

    def advance(self, tokens: Mapping[int, int], stops: Collection[int]) -> dict[int, FinishReason]:
        """Take the results of the last plan as :meth:`on_step` does, with less ado.

        Args:
            tokens: the sampled token of each request.
            stops: those that it ends.

        Returns:
            Who ended, and why.
        """
        return self._take(tokens, stops)[1]

    def take_copies(self) -> list[Copy]:
        """Return the copies to make before the forward pass of the plan just made, in order.

        They may also be made with those of a later plan, if this one is not computed.
        """
        return [] if self.swap is None else self.swap.take_copies()

    # ---- what others ask ------------------------------------------------------------

    def tokens(self, id: int) -> Sequence[int]:
        """Return the tokens of an unfinished request, prompt and generated.

        The list is live, not a copy: it grows with ``on_step`` and is not to be changed.

        Raises:
            KeyError: the request is unknown or has ended.
        """
        return self._roster.states[id].tokens

    def prompt_len(self, id: int) -> int:
        """Return how many of an unfinished request's tokens are its prompt.

        Raises:
            KeyError: the request is unknown or has ended.
        """
        return self._roster.states[id].prompt_len

    def cached_tokens(self, id: int) -> int:
        """Return how many tokens a cache held of an unfinished request when it first ran.

        Raises:
            KeyError: the request is unknown or has ended.
        """
        return self._roster.states[id].cached

    def running(self) -> list[int]:
        """Return the ids of the requests that hold blocks, highest rank first."""
        return [state.id for state in self._roster.running]

    def unfinished(self) -> int:
        """Return how many requests wait or run."""
        return len(self._roster.states)

    def has_unfinished(self) -> bool:
        """Return whether any request waits or runs."""
        return bool(self._roster.states)

    def now(self) -> int:
        """Return the tick of the clock that arrivals are counted in."""
        return self._clock()

    def stats(self) -> SchedulerStats:
        """Return where the scheduler stands."""
        roster = self._roster
        return SchedulerStats(
            total_blocks=self.blocks.total_blocks,
            free_blocks=self.blocks.free_blocks,
            running=len(roster.running),
            waiting=roster.waiting,
            waiting_blocks=roster.waiting_blocks,
            preemptions=roster.preemptions,
            admission_preemptions=roster.admission_preemptions,
            gap_admissions=roster.gap_admissions,
            recomputed_tokens=self._recomputed,
            steps=self._steps,
            queried_tokens=roster.queried_tokens,
            found_tokens=roster.found_tokens,
            restored_tokens=roster.restored_tokens,
        )

    # ---- the three phases -----------------------------------------------------------

    def _next_plan(self, ahead: bool) -> Plan:
        plan = Plan(self.config.max_batch_tokens)
        prefilling = self._plan_decodes(plan, ahead)
        if self._pace is not None:
            plan.budget = min(plan.budget, self._pace.step_budget(len(plan.decode)))
        moved = self._plan_prefills(plan, prefilling)
        plan.open = plan.open and moved
        return self._plan_admissions(plan, ahead) if moved else plan

    def _decided(self, plan: Plan) -> ScheduleOutput:
        self._plan = plan
        return ScheduleOutput(plan.prefill, plan.decode, plan.preempted)

    def _plan_decodes(self, plan: Plan, ahead: bool) -> list[RequestState]:
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
                self.blocks.append_slot(state.id, total)
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

    def _plan_prefills(self, plan: Plan, prefilling: list[RequestState]) -> bool:
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

    def _plan_admissions(self, plan: Plan, ahead: bool = False) -> Plan:
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
        full = len(self._roster.running) >= self.config.max_seqs or plan.budget <= 0
        return full and self.config.admission_preemption == 0

    def _admitted(self, state: RequestState, plan: Plan, found: Found) -> bool:
        """Seat the head of the queue, if seats, budget and blocks allow."""
        full = len(self._roster.running) >= self.config.max_seqs
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
        victims = choose_victims(newcomer, running, self.blocks, self.config, found.held)
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
        config, roster = self.config, self._roster
        if config.max_passes == 0 or plan.preempted:
            return
        while len(roster.running) < config.max_seqs and self.blocks.free_blocks > 0:
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
        if self._size(state) > self.blocks.free_blocks or plan.budget <= 0:
            return False
        found = self._roster.look_up(state)
        return not found.coming and self._granted(state, plan, found.tokens) > 0

    def _size(self, state: RequestState) -> int:
        return blocks_for(len(state.tokens), self.blocks.block_tokens)

    def _granted(self, state: RequestState, plan: Plan, computed: int) -> int:
        if plan.budget <= 0:
            return 0
        remaining = len(state.tokens) - computed
        return self._prefill_policy.chunk_len(remaining, plan.budget, plan.empty)

    # ---- results --------------------------------------------------------------------

    def _take(
        self, tokens: Mapping[int, int], stops: Collection[int]
    ) -> tuple[list[RequestState], dict[int, FinishReason]]:
        """Take results; return who grew, in row order, and who of them ended."""
        ahead = self._flying is not None
        plan, self._flying = self._flying or self._plan, None
        if not ahead:
            self._plan = Plan(0)
        sampled: list[RequestState] = []
        for state, end in plan.chunk_rows:
            if state.gone:
                continue
            last = end == len(state.tokens)
            if not ahead:
                if last and state.id not in tokens:
                    continue
                self._compute(state, end)
            state.flying = 0
            self._roster.computed(state)
            if last:
                sampled.append(state)
        sampled += plan.decode_rows
        grown: list[RequestState] = []
        ended: dict[int, FinishReason] = {}
        for state in sampled:
            id = state.id
            if state.gone:
                continue
            if (token := tokens.get(id)) is None:
                if ahead:
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

    def _compute(self, state: RequestState, end: int) -> None:
        """Count a chunk up to ``end`` as computed, or in flight."""
        self._recomputed += max(0, min(end, state.high) - state.computed)
        state.flying = end - state.computed
        state.computed = end

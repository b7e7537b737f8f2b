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

from engine.admission import sequence_limit
from engine.blocks import BlockSpace
from engine.plan import Chunk, Plan, RequestState, ScheduleOutput
from engine.planner import Planner
from engine.prefill import PrefillPolicy, WholePrompt
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
from engine.results import Results
from engine.roster import Roster
from engine.scheduler_config import SchedulerConfig, SchedulerStats
from engine.swap import Copy, SwapSpace

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
            clock: gives the arrival tick of requests that bring none; counts steps if None.
            swap: host memory for the blocks of who is preempted; without it they are computed
                again. Whoever runs a plan first makes the copies of :meth:`take_copies`.
        """
        self.config = config
        self.blocks = blocks
        self._steps = 0
        self._clock = clock or (lambda: self._steps)
        self.swap = swap
        self._roster = Roster(blocks, swap)
        self._planner = Planner(config, blocks, self._roster, prefill_policy or WholePrompt())
        self._plan = Plan(0)
        self._flying: Plan | None = None
        self._results = Results(self._roster)
        self._next_id = 0

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
        return self._decided(self._planner.next(self._steps))

    def schedule_ahead(self) -> None:
        """Plan the step after the one in flight, as if each of its rows gave a token and went on.

        In flight is the last step that was planned. Once its results have been taken,
        :meth:`resume` tells what has become of this plan. Nobody is preempted in it: who
        has to go is decided when it is known who has ended. A second call changes nothing.
        """
        if self._flying is not None:
            return
        self._flying = flying = self._plan
        self._results.expect(flying)
        self._steps += 1
        self._plan = self._planner.next(self._steps, ahead=True)

    def launch_ahead(self) -> ScheduleOutput | None:
        """Return the plan that was made ahead as it is: it is computed whatever the results say.

        They are taken first all the same. Rows of requests that they end are void.

        Returns:
            None if the plan has to wait for them: memory is short in it, or somebody waits
            who may start in a way that takes a plan made after all that is known.
        """
        plan, config = self._plan, self.config
        picky = config.admission_preemption or config.max_passes
        if not plan.open or (picky and self._roster.waiting):
            return None
        return self._decided(plan.present())

    def resume(self) -> ScheduleOutput:
        """Return the plan that was made ahead, less those who have ended since.

        Who has come since, or can start now, is in it as well.
        """
        if not self._plan.open:  # who is left out of it may find room by now
            return self._decided(self._planner.next(self._steps))
        return self._decided(self._planner.admit(self._plan.present(), self._steps))

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

    def _take(
        self, tokens: Mapping[int, int], stops: Collection[int]
    ) -> tuple[list[RequestState], dict[int, FinishReason]]:
        """Take the results of the step in flight; return who grew, in row order, and who ended."""
        flying, self._flying = self._flying, None
        if flying is not None:
            return self._results.take(flying, tokens, stops, expected=True)
        plan, self._plan = self._plan, Plan(0)
        return self._results.take(plan, tokens, stops)

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

    def __contains__(self, id: object) -> bool:
        """Return whether a request waits or runs."""
        return id in self._roster.states

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
            recomputed_tokens=self._results.recomputed,
            steps=self._steps,
            queried_tokens=roster.queried_tokens,
            found_tokens=roster.found_tokens,
            restored_tokens=roster.restored_tokens,
        )

    def _decided(self, plan: Plan) -> ScheduleOutput:
        self._plan = plan
        return ScheduleOutput(plan.prefill, plan.decode, plan.preempted)

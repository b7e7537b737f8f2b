"""One step: the plan that the runner gets, and what the scheduler keeps to make it."""

from dataclasses import dataclass, field

from engine.rank import Rank


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt: ``len`` tokens from position ``start``.

    Attributes:
        last: the chunk reaches the newest token, so the step samples the next one.
    """

    id: int
    start: int
    len: int
    last: bool


@dataclass(frozen=True, slots=True)
class ScheduleOutput:
    """One step. Its rows are the chunks with ``last`` in order, then the decodes in order.

    Attributes:
        prefill: chunks to compute.
        decode: ids whose newest token is computed.
        preempted: ids that lost their blocks to make room, in the order they lost them.
    """

    prefill: list[Chunk]
    decode: list[int]
    preempted: list[int]


@dataclass(slots=True, eq=False)
class RequestState:
    """One unfinished request.

    Attributes:
        tokens: prompt and generated so far; n is its length.
        end: n at which it has enough.
        computed: c.
        high: the largest c it ever lost; what is computed below it is computed again.
        seated: it is in the running list, else in the waiting queue (or gone).
        preempted: it ran before, so the queue's limit does not count it.
    """

    id: int
    rank: Rank
    tokens: list[int]
    prompt_len: int
    end: int
    computed: int = 0
    high: int = 0
    seated: bool = False
    preempted: bool = False


@dataclass(slots=True)
class Plan:
    """A step while it is made, and until its results are there.

    Attributes:
        budget: tokens that may still be added; below 0 after a prompt that runs alone.
        prefill, decode, preempted: as in ScheduleOutput.
        chunk_rows: for each chunk its request and the position it computes up to.
        decode_rows: for each decode its request.
    """

    budget: int
    prefill: list[Chunk] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    chunk_rows: list[tuple[RequestState, int]] = field(default_factory=list)
    decode_rows: list[RequestState] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Nothing is in the step so far."""
        return not (self.prefill or self.decode)

    def add_chunk(self, state: RequestState, length: int) -> None:
        """Let the step compute the next ``length`` tokens of a prompt."""
        end = state.computed + length
        last = end == len(state.tokens)
        self.prefill.append(Chunk(state.id, state.computed, length, last))
        self.chunk_rows.append((state, end))
        self.budget -= length

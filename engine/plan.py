"""One step: the plan that the runner gets, and what the scheduler keeps to make it."""

from collections.abc import Iterable
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

    @property
    def work(self) -> tuple[int, int]:
        """Tokens of prompts, and decodes, that it computes.

        A chunk of one token, as one that was swapped or cached leaves it, costs what a decode does.
        """
        chunks = [chunk.len for chunk in self.prefill if chunk.len > 1]
        single = len(self.prefill) - len(chunks)
        return sum(chunks), len(self.decode) + single


@dataclass(slots=True, eq=False)
class RequestState:
    """One unfinished request.

    Attributes:
        tokens: prompt and generated so far; n is its length.
        end: n at which it has enough.
        priority: as it was given; its weight is in the rank.
        computed: c.
        flying: tokens up to c that the step in flight computes, in a plan made ahead.
        awaits: that step gives it a token, which counts for n and is not known: 0 or 1.
        reach: n up to which it can go on decoding as it is: its table has room, and it has
            not enough.
        there: c when it was last seated.
        high: the largest c it ever computed and lost; what is computed below it is computed
            again.
        seated: it is in the running list, else in the waiting queue or gone.
        gone: it has ended or was aborted.
        preempted: it ran before, so the queue's limit does not count it.
        admission_preemptions: how often it made way for a newcomer.
        passed: how often one that ranks behind it was admitted because it could not start itself.
        waits_until: the step from which it waits no longer for what others compute of its
            tokens; 0 while it never did.
        salt, skip_cache: as in Request; once all of its prompt was computed, a cache is used again.
        cached: tokens that a cache held when it was seated and then computed something.
    """

    id: int
    rank: Rank
    tokens: list[int]
    prompt_len: int
    end: int
    priority: int = 0
    computed: int = 0
    flying: int = 0
    awaits: int = 0
    reach: int = 0
    there: int = 0
    high: int = 0
    seated: bool = False
    gone: bool = False
    preempted: bool = False
    admission_preemptions: int = 0
    passed: int = 0
    waits_until: int = 0
    salt: bytes = b""
    skip_cache: bool = False
    cached: int = 0


@dataclass(slots=True)
class Plan:
    """A step while it is made, and until its results are there.

    Attributes:
        budget: tokens that may still be added; below 0 after a prompt that runs alone.
        prefill, decode, preempted: as in ScheduleOutput.
        open: all who run move, so that others may come.
        chunk_rows: for each chunk its request and the position it computes up to.
        decode_rows: for each decode its request.
    """

    budget: int
    prefill: list[Chunk] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    open: bool = False
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

    def present(self) -> "Plan":
        """Return it without requests that have ended or were aborted since it was made."""
        rows = [*[state for state, _ in self.chunk_rows], *self.decode_rows]
        gone = [state for state in rows if state.gone]
        return self.without(gone) if gone else self

    def without(self, states: Iterable[RequestState]) -> "Plan":
        """Return a copy that computes nothing of some requests; their tokens are budget again."""
        gone = {state.id for state in states}
        chunks = [
            (chunk, row)
            for chunk, row in zip(self.prefill, self.chunk_rows, strict=True)
            if chunk.id not in gone
        ]
        decode_rows = [state for state in self.decode_rows if state.id not in gone]
        freed = sum(chunk.len for chunk in self.prefill if chunk.id in gone)
        return Plan(
            budget=self.budget + freed + len(self.decode_rows) - len(decode_rows),
            prefill=[chunk for chunk, _ in chunks],
            decode=[state.id for state in decode_rows],
            preempted=list(self.preempted),
            open=self.open,
            chunk_rows=[row for _, row in chunks],
            decode_rows=decode_rows,
        )

"""The scheduler's rules as plainly as they can be written, to compare the real one with.

Nothing is kept that can be worked out: the queue, the order and the free blocks are
found anew from one dictionary of requests each time they are needed.
"""

from dataclasses import dataclass, field


@dataclass
class Job:
    """One request; ``blocks`` is None while it waits."""

    prompt: list[int]
    generated: list[int]
    max_tokens: int
    priority: int
    key: tuple[int, int, int]
    blocks: list[int] | None = None
    computed: int = 0
    been_preempted: bool = False
    made_way: int = 0
    passed: int = 0
    kept: int = 0
    ever_computed: set[int] = field(default_factory=set)

    @property
    def total(self) -> int:
        return len(self.prompt) + len(self.generated)


@dataclass
class NaiveScheduler:
    """Takes the same calls as Scheduler and answers in tuples, for a FreeListBlocks pool."""

    max_seqs: int
    max_batch_tokens: int
    max_waiting: int
    priority_policy: bool
    aging: int
    max_model_len: int
    block_tokens: int
    total_blocks: int
    max_chunk: int | None
    levels: int = 0
    most_made_way: int = 3
    most_passed: int = 0
    host_slots: int = 0
    window: int = 16
    jobs: dict[int, Job] = field(default_factory=dict)
    added: int = 0
    steps: int = 0
    preemptions: int = 0
    admission_preemptions: int = 0
    gap_admissions: int = 0
    restored: int = 0
    recomputed: int = 0
    planned: list[tuple[int, int]] = field(default_factory=list)

    def in_order(self, waiting: bool) -> list[int]:
        ids = [id for id, job in self.jobs.items() if (job.blocks is None) == waiting]
        return sorted(ids, key=lambda id: self.jobs[id].key)

    def free(self) -> list[int]:
        held = {block for job in self.jobs.values() for block in job.blocks or []}
        return [block for block in range(self.total_blocks) if block not in held]

    def need(self, tokens: int) -> int:
        return len(range(0, tokens, self.block_tokens))

    def waiting_blocks(self) -> int:
        return sum(self.need(self.jobs[id].total) for id in self.in_order(waiting=True))

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int,
        arrival: int | None,
        generated: list[int],
    ) -> int | str:
        """Return the new id, or the name of the refusal."""
        if not prompt:
            return "EmptyPrompt"
        if max_tokens < 1 or len(generated) >= max_tokens:
            return "InvalidParam"
        if len(prompt) + len(generated) >= self.max_model_len:
            return "PromptTooLong"
        if self.need(min(len(prompt) + max_tokens, self.max_model_len)) > self.total_blocks:
            return "NeverFits"
        queue = [self.jobs[id] for id in self.in_order(waiting=True)]
        if len([job for job in queue if not job.been_preempted]) >= self.max_waiting:
            return "QueueFull"
        id = self.added
        self.added += 1
        when = self.steps if arrival is None else arrival
        urgency = priority * self.aging - when if self.priority_policy else 0
        key = (-urgency, when, id)
        self.jobs[id] = Job(list(prompt), list(generated), max_tokens, priority, key)
        return id

    def abort(self, id: int) -> None:
        self.jobs.pop(id, None)

    def chunk(self, remaining: int, budget: int, empty: bool) -> int:
        if budget <= 0:
            return 0
        if self.max_chunk is not None:
            return min(remaining, budget, self.max_chunk)
        return remaining if remaining <= budget or empty else 0

    def schedule(
        self,
    ) -> tuple[list[tuple[int, int, int, bool]], list[int], list[int]]:
        """Return (chunks as (id, start, len, last), decodes, preempted)."""
        self.steps += 1
        budget = self.max_batch_tokens
        chunks: list[tuple[int, int, int, bool]] = []
        decodes: list[int] = []
        preempted: list[int] = []

        for id in self.in_order(waiting=False):
            job = self.jobs[id]
            if job.blocks is None or job.total - job.computed != 1 or budget == 0:
                continue
            while job.blocks is not None and len(job.blocks) < self.need(job.total):
                if self.free():
                    job.blocks.append(min(self.free()))
                    continue
                idle = [one for one in self.in_order(waiting=False) if one not in decodes]
                self.preempt(idle[-1])
                preempted.append(idle[-1])
            if job.blocks is not None:
                decodes.append(id)
                budget -= 1

        blocked = False
        for id in self.in_order(waiting=False):
            job = self.jobs[id]
            if id in decodes or job.total - job.computed < 2 or blocked:
                continue
            size = self.chunk(job.total - job.computed, budget, not chunks and not decodes)
            blocked = size == 0
            if not blocked:
                chunks.append((id, job.computed, size, job.computed + size == job.total))
                budget -= size

        stuck = False
        while not blocked and not stuck and self.in_order(waiting=True):
            id = self.in_order(waiting=True)[0]
            job = self.jobs[id]
            victims = self.victims(id)
            if victims is None:
                stuck = True
                continue
            other_chunks = [chunk for chunk in chunks if chunk[0] not in victims]
            other_decodes = [one for one in decodes if one not in victims]
            budget = self.max_batch_tokens - len(other_decodes)
            budget -= sum(length for _, _, length, _ in other_chunks)
            left = job.total - self.start(id)
            size = self.chunk(left, budget, not other_chunks and not other_decodes)
            if size == 0:
                stuck = True
                continue
            for victim in victims:
                self.preempt(victim)
                self.jobs[victim].made_way += 1
                self.admission_preemptions += 1
            preempted += victims
            chunks = [*other_chunks, self.seat(id, size)]
            decodes = other_decodes

        while stuck and not preempted:
            budget = self.max_batch_tokens - len(decodes) - sum(chunk[2] for chunk in chunks)
            sizes = {
                id: self.chunk(
                    self.jobs[id].total - self.start(id), budget, not chunks and not decodes
                )
                for id in self.in_order(waiting=True)
            }
            filler = self.filler([id for id in sizes if sizes[id]])
            if filler is None:
                break
            for id in self.in_order(waiting=True):
                self.jobs[id].passed += self.jobs[id].key < self.jobs[filler].key
            self.gap_admissions += 1
            chunks.append(self.seat(filler, sizes[filler]))

        self.planned = [(id, start + size) for id, start, size, _ in chunks]
        self.planned += [(id, self.jobs[id].total) for id in decodes]
        return chunks, decodes, preempted

    def victims(self, id: int) -> list[int] | None:
        """The fewest of the lowest running ones without whom ``id`` has a place."""
        running = self.in_order(waiting=False)
        for count in range(len(running) + 1):
            others, gone = running[: len(running) - count], running[len(running) - count :]
            if not all(self.makes_way(one, id) for one in gone):
                return None
            held = sum(len(self.jobs[one].blocks or []) for one in others)
            enough = held + self.need(self.jobs[id].total) <= self.total_blocks
            if enough and len(others) < self.max_seqs:
                return gone[::-1]
        return None

    def filler(self, affordable: list[int]) -> int | None:
        """Who of those that may pass all before it fills the gap best."""
        if len(self.in_order(waiting=False)) >= self.max_seqs:
            return None
        near = self.in_order(waiting=True)[: self.window]
        fitting: list[int] = []
        for place, id in enumerate(near[1:], start=1):
            room = self.need(self.jobs[id].total) <= len(self.free())
            spared = all(self.jobs[other].passed < self.most_passed for other in near[:place])
            if room and spared and id in affordable:
                fitting.append(id)
        if self.priority_policy:
            levels = [self.jobs[id].priority for id in fitting]
            fitting = [
                id for place, id in enumerate(fitting) if levels[place] == max(levels[: place + 1])
            ]
        largest = max((self.need(self.jobs[id].total) for id in fitting), default=0)
        return next((id for id in fitting if self.need(self.jobs[id].total) == largest), None)

    def makes_way(self, id: int, newcomer: int) -> bool:
        job, other = self.jobs[id], self.jobs[newcomer]
        if self.levels == 0 or not self.priority_policy or job.made_way >= self.most_made_way:
            return False
        return other.key < job.key and other.priority - job.priority >= self.levels

    def start(self, id: int) -> int:
        """Where a waiting job begins: one token is left to compute, whatever is kept of it."""
        return min(self.jobs[id].kept, self.jobs[id].total - 1)

    def seat(self, id: int, size: int) -> tuple[int, int, int, bool]:
        """Give a job its blocks, and what is kept of it; return its chunk."""
        job = self.jobs[id]
        job.computed = self.start(id)
        job.blocks = self.free()[: self.need(job.total)]
        self.restored += job.kept
        job.kept = 0
        return id, job.computed, size, job.computed + size == job.total

    def free_slots(self) -> int:
        return self.host_slots - sum(self.need(job.kept) for job in self.jobs.values())

    def preempt(self, id: int) -> None:
        job = self.jobs[id]
        if self.need(job.computed) <= self.free_slots():
            job.kept = job.computed
        job.blocks, job.computed, job.been_preempted = None, 0, True
        self.preemptions += 1

    def on_step(self, sampled: dict[int, tuple[int, bool]]) -> list[tuple[int, int | str]]:
        """Take {id: (token, stop)}; return (id, token) and (id, reason) in row order."""
        events: list[tuple[int, int | str]] = []
        for id, end in self.planned:
            job = self.jobs.get(id)
            if job is None:
                continue
            if end == job.total and id not in sampled:
                continue
            positions = set(range(job.computed, end))
            self.recomputed += len(positions & job.ever_computed)
            job.ever_computed |= positions
            job.computed = end
            if end == job.total:
                token, stop = sampled[id]
                job.generated.append(token)
                events.append((id, token))
                full = len(job.generated) == job.max_tokens or job.total == self.max_model_len
                if stop or full:
                    events.append((id, "stop" if stop else "length"))
                    del self.jobs[id]
        self.planned = []
        return events

"""A sequence, and a router and replicas that do whatever a test wants."""

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

from deployments.channel import Listener, ReplicaLost
from deployments.dispatch import Sequence
from deployments.messages import Event, Refusal, RefusalKind, ReplicaInfo
from deployments.metrics import Counts
from deployments.order import Failed, Order, Refused
from engine.request import SamplingParams
from engine.submission import Detail, Submission
from router.ticket import Ticket

INFO = ReplicaInfo(fingerprint="f", block_tokens=4, total_blocks=10, max_model_len=40)
FULL = Refusal(RefusalKind.QUEUE_FULL, current=1, limit=1)
NOBODY = Refusal(RefusalKind.NO_REPLICA, retry_after=5.0)
BUSY = Refusal(RefusalKind.BUSY, retry_after=3.0, current=2, limit=2)


class FakeRouter:
    """Answers from a script; remembers every ticket's life."""

    def __init__(self, *answers: str | Refusal) -> None:
        self.answers = list(answers)
        self.placed: list[tuple[Ticket, bool]] = []
        self.group: Refusal | None = None
        self.gate: asyncio.Event | None = None
        self.admitted: list[Ticket] = []
        self.released: list[tuple[str, bool]] = []

    async def place(self, ticket: Ticket, *, bounced: bool) -> str | Refusal:
        self.placed.append((ticket, bounced))
        await asyncio.sleep(0)
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)

    async def admit(self, tickets: Many[Ticket]) -> Refusal | None:
        self.admitted += tickets
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        return self.group

    def release(self, ticket: str, *, finished: bool) -> None:
        self.released.append((ticket, finished))

    def nobody(self) -> Refusal:
        return NOBODY

    def live(self) -> int:
        """Tickets not given up; negative when one was given up twice."""
        asked = {ticket.id for ticket, _ in self.placed} | {one.id for one in self.admitted}
        return len(asked) - len(self.released)


class FakeReplica:
    """A link that a test drives by hand."""

    def __init__(self, name: str, answer: Refusal | None = None, info: ReplicaInfo = INFO) -> None:
        self.replica = name
        self.info = info
        self.answer = answer
        self.gate: asyncio.Event | None = None
        self.listeners: dict[str, Listener] = {}
        self.submitted: list[Submission] = []
        self.running: set[str] = set()
        self.within_s: list[float | None] = []
        self.traceparent = ""

    def listen(self, key: str, listener: Listener) -> None:
        self.listeners[key] = listener

    def forget(self, key: str) -> None:
        self.listeners.pop(key, None)

    async def submit(
        self, submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> Refusal | None:
        self.within_s.append(within_s)
        self.traceparent = traceparent
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        self.submitted.append(submission)
        if self.answer is None:
            self.running.add(submission.key)
        return self.answer

    async def abort(self, keys: Many[str]) -> None:
        await asyncio.sleep(0)
        self.running -= set(keys)

    def send(
        self,
        *tokens: int,
        text: str = "",
        finish: str | None = None,
        error: str | None = None,
        detail: Detail | None = None,
    ) -> None:
        for key in list(self.listeners):
            if finish is not None or error is not None:
                self.running.discard(key)
            self.listeners[key]((key, tokens, text, finish, error, detail))

    def die(self, *, left: bool = False) -> None:
        self.running.clear()
        for listener in list(self.listeners.values()):
            listener(ReplicaLost(self.replica, "killed", left=left))


class FakeChannel:
    def __init__(self, *replicas: FakeReplica) -> None:
        self.replicas = {replica.replica: replica for replica in replicas}

    async def connect(self, replica: str) -> Any:
        await asyncio.sleep(0)
        if replica not in self.replicas:
            raise ReplicaLost(replica, "unknown")
        return self.replicas[replica]


class Recorder:
    """A timeline that keeps what it hears."""

    traceparent = ""

    def __init__(self, turns: list[tuple[Any, ...]]) -> None:
        self._turns = turns

    def taken(self, queued_s: float) -> None:
        self._turns.append(("taken",))

    def first_token(self) -> None:
        self._turns.append(("first_token",))

    def moved(self, reason: str) -> None:
        self._turns.append(("moved", reason))

    def ended(self, outcome: str, tokens: int) -> None:
        self._turns.append(("ended", outcome, tokens))


class Run:
    """A sequence in its task, with what it emitted."""

    def __init__(
        self,
        router: FakeRouter,
        *replicas: FakeReplica,
        max_tokens: int = 8,
        hold_s: float = 60.0,
        waited_s: float = 0.0,
        key: str = "k",
        start: bool = True,
        **order: Any,
    ) -> None:
        self.events: list[Event | Refused | Failed] = []
        self.counts = Counts()
        self.turns: list[tuple[Any, ...]] = []
        params = SamplingParams(max_tokens=max_tokens, seed=1)
        began = time.monotonic() - waited_s
        self.sequence = Sequence(
            Order(key, (1, 2, 3, 4, 5), params, 2, 1000, began, request_id="client's-id", **order),
            INFO,
            router,  # type: ignore[arg-type]
            FakeChannel(*replicas),
            self.counts,
            hold_s,
            self.events.append,
            Recorder(self.turns),
        )
        if start:
            self.task = self.sequence.start()

    @property
    def text(self) -> str:
        return "".join(event[2] for event in self.events if isinstance(event, tuple))

    def observed(self, name: str, **labels: str) -> int:
        histogram = self.counts.histograms.get((name, tuple(labels.items())))
        return 0 if histogram is None else sum(histogram.counts)

    def counted(self, name: str, **labels: str) -> int:
        return self.counts.counters.get((name, tuple(labels.items())), 0)


async def until(check: Callable[[], object]) -> None:
    for _ in range(1000):
        if check():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)

"""A sequence's way through a router and replicas that do whatever a test wants."""

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import pytest

from deployments.channel import Listener, ReplicaLost
from deployments.dispatch import MAX_LOSSES, Sequence
from deployments.messages import Event, Refusal, RefusalKind, ReplicaInfo
from deployments.metrics import Counts
from deployments.order import Failed, Order, Refused
from engine.request import SamplingParams
from engine.submission import Submission
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
        self.released: list[tuple[str, bool]] = []

    async def place(self, ticket: Ticket, *, bounced: bool) -> str | Refusal:
        self.placed.append((ticket, bounced))
        await asyncio.sleep(0)
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)

    def release(self, ticket: str, *, finished: bool) -> None:
        self.released.append((ticket, finished))

    def nobody(self) -> Refusal:
        return NOBODY

    def live(self) -> int:
        """Tickets not given up; negative when one was given up twice."""
        return len({ticket.id for ticket, _ in self.placed}) - len(self.released)


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

    def listen(self, key: str, listener: Listener) -> None:
        self.listeners[key] = listener

    def forget(self, key: str) -> None:
        self.listeners.pop(key, None)

    async def submit(self, submission: Submission, traceparent: str = "") -> Refusal | None:
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

    def send(self, *tokens: int, text: str = "", finish: str | None = None) -> None:
        for key in list(self.listeners):
            if finish is not None:
                self.running.discard(key)
            self.listeners[key]((key, tokens, text, finish, None, None))

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


class Run:
    """A sequence in its task, with what it emitted."""

    def __init__(
        self,
        router: FakeRouter,
        *replicas: FakeReplica,
        max_tokens: int = 8,
        hold_s: float = 60.0,
        waited_s: float = 0.0,
    ) -> None:
        self.events: list[Event | Refused | Failed] = []
        self.counts = Counts()
        params = SamplingParams(max_tokens=max_tokens, seed=1)
        began = time.monotonic() - waited_s
        order = Order("k", (1, 2, 3, 4, 5), params, 2, 1000, began, request_id="client's-id")
        channel = FakeChannel(*replicas)
        sequence = Sequence(
            order,
            INFO,
            router,  # type: ignore[arg-type]
            channel,
            self.counts,
            hold_s,
            self.events.append,
        )
        self.task = asyncio.get_running_loop().create_task(sequence.run())

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


async def test_a_calm_life() -> None:
    router, a = FakeRouter("a"), FakeReplica("a")
    run = Run(router, a)
    await until(lambda: a.submitted)
    a.send(7, text="x")
    a.send(8, text="y", finish="length")
    await run.task
    assert run.text == "xy"
    assert router.released == [("k", True)]
    assert a.submitted == [
        Submission("k", (1, 2, 3, 4, 5), SamplingParams(max_tokens=8, seed=1), 2, 1000)
    ]
    # 5 tokens now and 13 at most, in blocks of 4.
    (ticket, bounced), *_ = router.placed
    assert (ticket, bounced) == (Ticket("k", 2, 1000, 2, 4, cost=5, call="k"), False)
    assert run.counted("request_success_total", finished_reason="length") == 1
    assert run.counted("request_success_total", finished_reason="abort") == 0


async def test_never_asks_for_more_than_the_context() -> None:
    router = FakeRouter(BUSY)
    run = Run(router, max_tokens=1000)
    await run.task
    assert router.placed[0][0].blocks_max == INFO.max_model_len // INFO.block_tokens


async def test_busy_is_an_answer_and_leaves_nothing() -> None:
    router = FakeRouter(BUSY)
    run = Run(router)
    await run.task
    (refused,) = run.events
    assert isinstance(refused, Refused)
    assert refused.refusal is BUSY
    assert router.live() == 0
    assert run.counted("admission_rejections_total", reason="busy") == 1


async def test_a_full_replica_sends_it_on_with_its_first_arrival() -> None:
    router, a, b = FakeRouter("a", "b"), FakeReplica("a", FULL), FakeReplica("b")
    run = Run(router, a, b)
    await until(lambda: b.submitted)
    assert [(t.id, t.arrival, bounced) for t, bounced in router.placed] == [
        ("k", 1000, False),
        ("k", 1000, True),
    ]
    assert not a.listeners
    b.send(7, finish="stop")
    await run.task
    assert router.released == [("k", True)]


async def test_goes_on_elsewhere_when_its_replica_dies() -> None:
    router, a, b = FakeRouter("a", "b"), FakeReplica("a"), FakeReplica("b")
    run = Run(router, a, b)
    await until(lambda: a.submitted)
    a.send(7, text="x")
    a.send(8, text="y")
    a.die()
    await until(lambda: b.submitted)
    again, _ = router.placed[1]
    assert (again.arrival, again.again, again.id != "k") == (1000, True, True)
    assert b.submitted[0].generated == (7, 8)
    assert b.submitted[0].params == a.submitted[0].params
    a.send(9, text="from the dead")
    b.send(9, text="z", finish="length")
    await run.task
    assert run.text == "xyz"
    assert router.live() == 0
    assert run.counted("request_resumed_total", reason="lost") == 1


async def test_other_numerics_are_no_place_to_go_on() -> None:
    other = ReplicaInfo("g", 4, 10, 40)
    router, a, b = FakeRouter("a", "b"), FakeReplica("a"), FakeReplica("b", info=other)
    run = Run(router, a, b)
    await until(lambda: a.submitted)
    a.send(7)
    a.die()
    await run.task
    assert isinstance(run.events[-1], Failed)
    assert router.live() == 0
    assert not b.submitted


@pytest.mark.parametrize("left", [False, True])
async def test_a_request_that_kills_its_replicas_is_given_up(left: bool) -> None:
    """Those that go in order are no reason to: a redeploy moves a request once a replica."""
    replicas = [FakeReplica(str(number)) for number in range(MAX_LOSSES + 2)]
    run = Run(router := FakeRouter(*(one.replica for one in replicas)), *replicas)
    for number, replica in enumerate(replicas[: MAX_LOSSES + 1]):
        await until(lambda replica=replica: replica.submitted)
        await settle()
        replica.send(number)
        replica.die(left=left)
    await settle()
    assert run.task.done() != left
    if left:
        replicas[-1].send(7, finish="stop")
        await run.task
    assert isinstance(run.events[-1], tuple if left else Failed)
    assert len(router.placed) == MAX_LOSSES + 1 + left
    assert router.live() == 0


async def test_replicas_out_of_reach_are_no_reason_to_fail_before_long() -> None:
    """A replica that dies between the placement and the submit has not been killed by it."""
    a = FakeReplica("a")
    run = Run(router := FakeRouter("gone", "gone", "gone", "gone", "gone", "a"), a)
    await asyncio.wait_for(_submitted(a), 5)
    a.send(7, finish="stop")
    await run.task
    assert run.counted("request_success_total", finished_reason="stop") == 1
    assert router.live() == 0
    run = Run(router := FakeRouter(*["gone"] * 9), hold_s=0.0)
    await run.task
    assert [event.refusal for event in run.events if isinstance(event, Refused)] == [NOBODY]
    assert router.live() == 0


async def _asked(router: FakeRouter, times: int) -> None:
    while len(router.placed) < times:
        await asyncio.sleep(0.001)


async def _submitted(replica: FakeReplica) -> None:
    while not replica.submitted:
        await asyncio.sleep(0.001)


async def test_no_replica_to_go_on_with_is_said_as_such() -> None:
    """Not as an error of the server: it is to be tried again."""
    run = Run(router := FakeRouter("a", NOBODY), a := FakeReplica("a"), hold_s=0.0)
    await until(lambda: a.submitted)
    a.send(7)
    a.die()
    await run.task
    assert isinstance(run.events[-1], Refused)
    assert run.events[-1].refusal is NOBODY
    assert router.live() == 0


async def test_a_refusal_after_the_first_token_is_a_failure() -> None:
    router, a = FakeRouter("a", BUSY), FakeReplica("a")
    run = Run(router, a)
    await until(lambda: a.submitted)
    a.send(7)
    a.die()
    await run.task
    assert isinstance(run.events[-1], Failed)


@pytest.mark.parametrize("steps", range(14))
async def test_cancelled_at_any_moment_it_leaves_nothing(steps: int) -> None:
    """vllm router PR#215: a client that left at the wrong moment left its grant behind."""
    router, a = FakeRouter("a"), FakeReplica("a")
    run = Run(router, a)
    for _ in range(steps):
        await asyncio.sleep(0)
    run.task.cancel()
    await asyncio.wait([run.task])
    await settle()
    assert router.live() == 0
    assert not a.running
    assert not a.listeners


async def test_an_abort_never_overtakes_its_submit() -> None:
    router, a = FakeRouter("a"), FakeReplica("a")
    a.gate = asyncio.Event()
    run = Run(router, a)
    await until(lambda: a.listeners)
    await settle()
    run.task.cancel()
    await settle()
    # The replica has not taken it yet, but will.
    assert router.released == []
    a.gate.set()
    await settle()
    assert a.submitted
    assert not a.running
    assert router.released == [("k", False)]


async def test_an_end_that_was_seen_is_not_counted_as_an_abort() -> None:
    router, a = FakeRouter("a"), FakeReplica("a")
    run = Run(router, a)
    await until(lambda: a.submitted)
    await settle()
    a.send(7, finish="stop")
    run.task.cancel()
    await asyncio.wait([run.task])
    assert run.counted("request_success_total", finished_reason="abort") == 0
    assert router.released == [("k", True)]


async def test_what_a_first_token_overtakes_is_counted_all_the_same() -> None:
    """The stream may be faster than the answer to the submit; and a replica may be lost first."""
    router, a, b = FakeRouter("a", "b"), FakeReplica("a"), FakeReplica("b")
    a.gate = asyncio.Event()
    run = Run(router, a, b)
    await until(lambda: a.listeners)
    a.send(7)
    a.gate.set()
    await settle()
    assert run.observed("request_queue_time_seconds", priority_class="high") == 1
    assert run.counted("prompt_tokens_total") == 5
    a.die()
    await until(lambda: b.submitted)
    b.send(8, finish="stop")
    await run.task
    assert run.observed("request_queue_time_seconds", priority_class="high") == 1
    assert run.counted("prompt_tokens_total") == 5


async def test_a_replica_that_is_full_and_then_lost_is_lost() -> None:
    """Its end was taken for that of the replica that took the request next."""
    router, a, b = FakeRouter("a", "b"), FakeReplica("a", FULL), FakeReplica("b")
    a.gate = asyncio.Event()
    run = Run(router, a, b)
    await until(lambda: a.listeners)
    await settle()
    a.die()
    a.gate.set()
    await until(lambda: b.submitted)
    b.send(7, text="x", finish="stop")
    await run.task
    assert run.text == "x"
    assert [len(one.submitted) for one in (a, b)] == [1, 1]
    assert router.live() == 0


async def test_every_log_line_of_a_request_has_its_id(caplog: pytest.LogCaptureFixture) -> None:
    router, a = FakeRouter("a", BUSY), FakeReplica("a")
    run = Run(router, a)
    await until(lambda: a.submitted)
    a.send(7)
    a.die()
    await run.task
    lines = {record.getMessage() for record in caplog.records}
    assert len(lines) == 2
    assert all("request client's-id" in line for line in lines)


@pytest.mark.parametrize("kind", [RefusalKind.OTHER, RefusalKind.ABANDONED])
async def test_what_no_client_can_help_is_a_failure(kind: RefusalKind) -> None:
    run = Run(FakeRouter(Refusal(kind)))
    await run.task
    assert isinstance(run.events[-1], Failed)


async def test_what_has_begun_asks_for_its_kind_and_again_when_there_is_none() -> None:
    """A redeploy with other numerics: the last of the old kind may be on its way back."""
    router, a, b = FakeRouter("a", NOBODY, "b"), FakeReplica("a"), FakeReplica("b")
    run = Run(router, a, b)
    await until(lambda: a.submitted)
    a.send(7)
    a.die()
    await asyncio.wait_for(_submitted(b), 5)
    assert [ticket.kind for ticket, _ in router.placed] == ["", "f", "f"]
    assert len({ticket.id for ticket, _ in router.placed}) == 2
    b.send(8, finish="stop")
    await run.task
    assert router.live() == 0


async def test_a_client_that_leaves_while_no_replica_is_in_reach_is_an_abort() -> None:
    run = Run(router := FakeRouter(*["gone"] * 100))
    await asyncio.wait_for(_asked(router, 4), 5)
    run.task.cancel()
    await asyncio.wait([run.task])
    assert run.counted("request_success_total", finished_reason="abort") == 1


async def test_a_long_wait_in_the_queue_is_no_wait_for_a_replica() -> None:
    """What had waited long was refused at the first replica that it could not reach."""
    a = FakeReplica("a")
    run = Run(FakeRouter("gone", "a"), a, hold_s=30.0, waited_s=100.0)
    await until(lambda: a.submitted)
    a.send(7, finish="stop")
    await run.task
    assert isinstance(run.events[-1], tuple)


async def test_a_submit_that_a_frozen_replica_never_answers_is_not_waited_for() -> None:
    """Its process was stopped in between: the call ends only when somebody kills it."""
    router, a, b = FakeRouter("a", "b"), FakeReplica("a"), FakeReplica("b")
    a.gate = asyncio.Event()
    run = Run(router, a, b)
    await until(lambda: a.listeners)
    a.die()
    await until(lambda: b.submitted)
    b.send(7, text="x", finish="stop")
    await run.task
    assert run.text == "x"
    # The ticket of the first attempt is given up when the call has ended.
    a.gate.set()
    await settle()
    assert (router.live(), a.running) == (0, set())

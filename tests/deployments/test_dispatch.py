"""A sequence's way through a router and replicas that do whatever a test wants."""

import asyncio

import pytest

from deployments.messages import Refusal, RefusalKind, ReplicaInfo
from deployments.order import Failed, Refused
from deployments.patience import MAX_LOSSES
from engine.request import SamplingParams
from engine.submission import Detail, Submission
from router.ticket import Ticket
from tests.deployments.sequences import (
    BUSY,
    FULL,
    INFO,
    NOBODY,
    FakeReplica,
    FakeRouter,
    Run,
    settle,
    until,
)


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
    assert len({record.getMessage() for record in caplog.records}) == 2
    # As a field alone: Serve writes it in front.
    assert {record.__dict__["request_id"] for record in caplog.records} == {"client's-id"}
    assert "client's-id" not in caplog.text


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


@pytest.mark.parametrize("first", [True, False])
async def test_the_wait_ends_with_the_first_step_that_computes_something(first: bool) -> None:
    """What waited in a replica's own queue, behind others, had waited no time at all."""
    router, a = FakeRouter("a"), FakeReplica("a")
    a.gate = asyncio.Event()
    run = Run(router, a, waited_s=3.0)
    await until(lambda: a.listeners)
    if first:
        a.gate.set()
        await until(lambda: a.submitted)
        await settle()
    assert run.observed("request_queue_time_seconds", priority_class="high") == 0
    a.send(7, detail=Detail(queued_s=40.0))
    a.gate.set()
    await settle()
    a.send(8, finish="stop", detail=Detail())
    await run.task
    assert run.observed("request_queue_time_seconds", priority_class="high") == 1
    labels = (("priority_class", "high"),)
    assert run.counts.histograms["request_queue_time_seconds", labels].sum >= 43.0


async def test_tokens_are_counted_as_they_come_and_for_whom() -> None:
    router, a = FakeRouter("a"), FakeReplica("a")
    run = Run(router, a, tenant="search")
    await until(lambda: a.submitted)
    await settle()
    a.send(7, 8)
    a.send(9)
    assert run.counts.served == {("search", 2): 3}
    assert run.counted("generation_tokens_total") == 3
    assert run.counted("tenant_tokens_total", tenant="search") == 5 + 3
    run.task.cancel()
    await asyncio.wait([run.task])
    assert run.counts.served == {("search", 2): 3}


async def test_a_recorder_hears_of_every_turn_once() -> None:
    router, a, b = FakeRouter("a", "b"), FakeReplica("a"), FakeReplica("b")
    run = Run(router, a, b, traceparent="00-1-2-01")
    await until(lambda: a.submitted)
    await settle()
    a.send(7)
    a.die(left=True)
    await until(lambda: b.submitted)
    await settle()
    b.send(8, finish="stop")
    await run.task
    turns = [("taken",), ("first_token",), ("moved", "drained"), ("taken",), ("ended", "stop", 2)]
    assert run.turns == turns
    assert [one.traceparent for one in (a, b)] == ["00-1-2-01"] * 2

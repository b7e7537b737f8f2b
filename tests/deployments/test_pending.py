"""The questions of gateways: each is answered, and nothing is kept of what was given up."""

import asyncio

from deployments.messages import Refusal, RefusalKind
from deployments.pending import Pending, refusal_of
from router.errors import Busy, Expired, NoReplica, TenantBusy, TenantRate, TooManyTogether
from router.ticket import Placement
from router.ticket import Refusal as Turned


async def test_a_decision_answers_whoever_asked_last() -> None:
    pending = Pending()
    old = pending.ask("g", "a")
    new = pending.ask("g", "a")
    other = pending.ask("g", "b")
    assert pending.waits
    assert not pending.is_newest("a", old)
    decisions = [Placement("a", "r"), Turned("b", NoReplica(2.0)), Placement("unknown", "s")]
    assert pending.decide(decisions) == ["r", "s"]
    assert await old.decided == Refusal(RefusalKind.ABANDONED)
    assert await new.decided == "r"
    assert await other.decided == Refusal(RefusalKind.NO_REPLICA, retry_after=2.0)
    # Placed is not given up; refused is.
    assert ("a" in pending, "b" in pending, pending.waits, len(pending)) == (True, False, False, 1)


async def test_giving_up_is_told_to_whoever_waits() -> None:
    pending = Pending()
    call = pending.ask("g", "a")
    pending.give_up("a")
    pending.give_up("a")
    assert await call.decided == Refusal(RefusalKind.ABANDONED)
    gone = pending.ask("g", "b")
    gone.decided.cancel()
    pending.give_up("b")
    await asyncio.sleep(0)
    assert len(pending) == 0


async def test_a_gateways_tickets_those_that_wait_first() -> None:
    pending = Pending()
    for ticket in ("placed", "waits"):
        pending.ask("g", ticket)
    pending.ask("other", "theirs")
    pending.decide([Placement("placed", "r")])
    assert pending.of("g") == ["waits", "placed"]


async def test_what_was_let_in_with_others_is_joined_once() -> None:
    pending = Pending()
    pending.ask("g", "alone")
    call = pending.ask("g", "a", admitted_at=5.0)
    pending.ask("g", "b", admitted_at=6.0)
    assert (pending.not_joined(5.0), pending.not_joined(6.0)) == ([], ["a"])
    pending.decide([Placement("a", "r")])
    assert pending.join("alone") is None
    assert pending.join("unknown") is None
    assert pending.join("a") is call
    assert pending.join("a") is None
    assert pending.not_joined(9.0) == ["b"]
    assert await call.decided == "r"


async def test_what_is_lost_is_its_gateways_until_that_gives_it_up() -> None:
    """A gateway that died between a replica's loss and its next question left its place behind."""
    pending = Pending()
    pending.ask("g", "a")
    pending.ask("g", "b")
    for ticket in ("a", "b", "unknown"):
        pending.lose(ticket)
    pending.keep("g", "old")
    assert (len(pending), pending.of("g"), pending.of("other")) == (0, ["a", "b", "old"], [])
    pending.give_up("a")
    # Asked for again, it is known by that call.
    call = pending.ask("g", "b")
    pending.keep("g", "b")
    assert pending.of("g") == ["b", "old"]
    pending.give_up("b")
    pending.give_up("old")
    assert (call.decided.done(), pending.of("g")) == (True, [])


def test_every_no_crosses_processes_with_what_it_says() -> None:
    assert refusal_of(TooManyTogether(9, 8)) == Refusal(RefusalKind.TOO_MANY, 0.0, 9, 8)
    assert refusal_of(Expired(2.0, 1.0)) == Refusal(RefusalKind.EXPIRED)
    assert refusal_of(Busy(3.0, 4, 5)) == Refusal(RefusalKind.BUSY, 3.0, 4, 5)
    busy = refusal_of(TenantBusy(2.0, "search", 8, 8))
    assert (busy.kind, busy.retry_after, busy.current, busy.limit) == (
        RefusalKind.TENANT_BUSY,
        2.0,
        8,
        8,
    )
    assert "'search' has 8 of 8" in busy.message
    rate = refusal_of(TenantRate(9.0, "search", 70, 60))
    assert (rate.kind, rate.retry_after, rate.current, rate.limit) == (
        RefusalKind.TENANT_RATE,
        9.0,
        70,
        60,
    )

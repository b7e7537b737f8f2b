"""The questions of gateways: each is answered, and nothing is kept of what was given up."""

import asyncio

from deployments.messages import Refusal, RefusalKind
from deployments.pending import Pending
from router.errors import NoReplica
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

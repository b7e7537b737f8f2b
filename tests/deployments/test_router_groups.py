"""Tickets that are let in together, and limits that hold whatever becomes of a ticket."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from deployments import router as module
from deployments.messages import Refusal, RefusalKind
from deployments.metrics import Counts
from deployments.tenant import Tenant
from router.ticket import Ticket
from tests.deployments.fleet import Fleet, settle, ticket

NAMES = ("a", "b", "c")


def group(blocks: int = 4, **more: Any) -> list[Ticket]:
    return [ticket(name, blocks, call="a", **more) for name in NAMES]


def join(fleet: Fleet, one: Ticket) -> "asyncio.Task[str | Refusal]":
    return asyncio.create_task(fleet.router.acquire("g", replace(one, again=True)))


async def test_each_of_a_group_joins_its_place() -> None:
    fleet = Fleet(max_queued=1)
    await fleet.report("r")
    assert await fleet.router.admit("g", group()) is None
    assert fleet.grants() == 3
    calls = [join(fleet, one) for one in group()]
    await settle()
    assert [call.done() for call in calls] == [True, True, False]
    await fleet.router.release({"a": True})
    assert await asyncio.gather(*calls) == ["r", "r", "r"]
    assert fleet.grants() == 2


async def test_too_many_are_refused_whole() -> None:
    """vllm PR#53936."""
    fleet = Fleet(max_queued=3)
    await fleet.report("r")
    await fleet.ask("first", blocks=10)
    refusal = await fleet.router.admit("g", [*group(), ticket("d")])
    assert refusal is not None
    assert (refusal.kind, refusal.current, refusal.limit) == (RefusalKind.BUSY, 0, 3)
    assert (fleet.grants(), await fleet.router.unfinished()) == (1, 1)


async def test_a_router_that_restarts_before_they_join_lets_them_in() -> None:
    old, new = Fleet(), Fleet(max_queued=0)
    await old.report("r")
    assert await old.router.admit("g", group()) is None
    await new.report("r", free=0)
    calls = [join(new, one) for one in group()]
    await settle()
    assert (new.grants(), any(call.done() for call in calls)) == (3, False)
    await new.report("r", free=10)
    await settle()
    assert [call.done() for call in calls] == [True, True, False]
    calls[2].cancel()
    await asyncio.wait(calls)


async def test_a_refusal_before_they_join_is_theirs_to_hear_again() -> None:
    fleet = Fleet(hold_s=0.05)
    assert await fleet.router.admit("g", group()) is None
    # Nobody serves, and hope ends.
    while fleet.grants():
        await asyncio.sleep(0.001)
    answers = await asyncio.gather(*(join(fleet, one) for one in group()))
    kinds = {one.kind for one in answers if isinstance(one, Refusal)}
    assert (kinds, len(answers)) == ({RefusalKind.NO_REPLICA}, 3)
    assert await fleet.router.unfinished() == 0


@pytest.mark.parametrize("joined", [True, False])
async def test_a_gateway_that_dies_leaves_nothing_of_a_group(joined: bool) -> None:
    fleet = Fleet()
    session = fleet.router.session("g")
    await anext(session)
    await fleet.report("r")
    await fleet.router.admit("g", group())
    calls = [join(fleet, one) for one in group() if joined]
    await settle()
    await session.aclose()  # type: ignore[attr-defined]
    await asyncio.gather(*calls)
    assert (fleet.grants(), await fleet.router.unfinished()) == (0, 0)


async def test_places_that_nobody_comes_for_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release may overtake the admission that it follows, and then has nothing to release."""
    fleet = Fleet()
    await fleet.report("r")
    await fleet.router.admit("g", group())
    assert await join(fleet, group()[0]) == "r"
    fleet.router._tick()
    assert fleet.grants() == 3
    monkeypatch.setattr(module, "JOIN_S", -1.0)
    fleet.router._tick()
    assert fleet.grants() == 1
    # Whoever comes after all had a place.
    assert await join(fleet, group()[1]) == "r"


async def test_a_joined_call_that_is_cancelled_gives_its_ticket_up() -> None:
    fleet = Fleet()
    await fleet.report("r", free=0)
    await fleet.router.admit("g", group())
    call = join(fleet, group()[0])
    await settle()
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert fleet.grants() == 2


async def test_a_closed_router_takes_no_new_group() -> None:
    fleet = Fleet()
    await fleet.report("r")
    await fleet.router.close()
    refusal = await fleet.router.admit("g", group())
    assert refusal is not None
    assert (refusal.kind, fleet.grants()) == (RefusalKind.NO_REPLICA, 0)


async def test_what_is_expired_at_once_refuses_the_group() -> None:
    fleet = Fleet()
    await fleet.report("r")
    refusal = await fleet.router.admit("g", group(start_within_s=0.0))
    assert refusal == Refusal(RefusalKind.EXPIRED)
    assert (fleet.grants(), await fleet.router.unfinished()) == (0, 0)


# ---- limits ---------------------------------------------------------------------------

ONE = Tenant("search", max_in_flight=1)


async def kind(answer: "asyncio.Task[str | Refusal]") -> str:
    said = await answer
    return said.kind.value if isinstance(said, Refusal) else said


async def test_a_call_counts_once_until_its_last_ticket_is_given_up() -> None:
    fleet = Fleet(ONE)
    await fleet.report("r")
    assert await fleet.router.admit("g", group(2, tenant="search")) is None
    assert await kind(fleet.ask("x", tenant="search")) == "tenant_busy"
    # Another tenant is another matter.
    assert await kind(fleet.ask("y", tenant="batch")) == "r"
    await fleet.router.release({"a": True, "b": False})
    assert await kind(fleet.ask("x", tenant="search")) == "tenant_busy"
    await fleet.router.release({"c": True})
    assert await kind(fleet.ask("x", tenant="search")) == "r"


async def test_a_replicas_loss_does_not_end_a_call_and_its_gateways_death_does() -> None:
    """Lost with its replica, it goes on; but if its gateway died, nobody would ever say its end."""
    fleet = Fleet(ONE)
    session = fleet.router.session("g")
    await anext(session)
    await fleet.report("r")
    await fleet.report("s")
    assert await kind(fleet.ask("a", tenant="search", call="a")) in ("r", "s")
    lost = next(r.replica for r in fleet.router._core.gauges().replicas if r.grants)
    await fleet.router.lost(lost, certain=True)
    assert await kind(fleet.ask("x", "other", tenant="search")) == "tenant_busy"
    more = {"tenant": "search", "call": "a", "again": True}
    assert await kind(fleet.ask("a.1", **more)) != "tenant_busy"
    await fleet.router.release({"a": False})
    assert await kind(fleet.ask("x", "other", tenant="search")) == "tenant_busy"
    await fleet.router.lost("s" if lost == "r" else "r", certain=True)
    await session.aclose()  # type: ignore[attr-defined]
    await fleet.report("t")
    assert await kind(fleet.ask("x", "other", tenant="search")) == "t"


async def test_a_new_router_hears_from_the_gateways_what_is_under_way() -> None:
    fleet = Fleet(ONE)
    session = fleet.router.session("g")
    await anext(session)
    await fleet.report("r")
    await fleet.router.remember("g", [ticket("old", tenant="search")])
    assert await kind(fleet.ask("x", "other", tenant="search")) == "tenant_busy"
    await fleet.router.release({"old": True})
    assert await kind(fleet.ask("x", "other", tenant="search")) == "r"
    await fleet.router.release({"x": True})
    await fleet.router.remember("g", [ticket("older", tenant="search")])
    await session.aclose()  # type: ignore[attr-defined]
    assert await kind(fleet.ask("y", "other", tenant="search")) == "r"


async def test_generated_tokens_use_up_a_tenants_minute() -> None:
    fleet = Fleet(Tenant("search", tokens_per_minute=600))
    await fleet.report("r")
    assert await kind(fleet.ask("a", tenant="search", cost=100)) == "r"
    counts = Counts()
    counts.serve("search", 0, 900)
    await fleet.router.count(counts)
    refused = await fleet.ask("b", tenant="search", cost=10)
    assert isinstance(refused, Refusal)
    assert (refused.kind, refused.current, refused.limit) == (RefusalKind.TENANT_RATE, 10, 600)
    # 410 tokens are lacking, ten come in a second.
    assert 40.0 <= refused.retry_after <= 1.5 * 42.0

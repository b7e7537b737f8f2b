"""Calls through a handle: what their failures mean."""

import asyncio

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError

from deployments.calls import Gone, answer_of


async def test_whose_cancellation_it_is() -> None:
    """A router or replica that is being stopped cancels calls: no reason to stop here too."""

    async def stopped() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Gone):
        await answer_of(stopped())
    mine = asyncio.create_task(answer_of(asyncio.Event().wait()))
    await asyncio.sleep(0)
    mine.cancel()
    with pytest.raises(asyncio.CancelledError):
        await mine


@pytest.mark.parametrize(
    ("error", "certain"),
    [(ActorDiedError(), True), (ActorUnavailableError("gone", b"\0" * 16), False)],
)
async def test_out_of_reach_is_not_yet_dead(error: Exception, certain: bool) -> None:
    async def call() -> None:
        raise error

    with pytest.raises(Gone) as caught:
        await answer_of(call())
    assert caught.value.certain is certain


async def test_a_message_that_is_too_large_says_nothing_of_the_other_process() -> None:
    """A request of 5 MB made healthy replicas count as lost, one after the other."""

    async def call() -> None:
        raise AioRpcError(StatusCode.RESOURCE_EXHAUSTED, Metadata(), Metadata(), "larger than max")

    with pytest.raises(AioRpcError):
        await answer_of(call())

"""A replica's end of a stream: what is sent together, and how it ends."""

from typing import Any, cast

import pytest

from deployments.lane import Lane
from deployments.messages import Goodbye
from deployments.outbox import Outbox


def event(key: str, token: int) -> Any:
    return (key, (token,), "", None, None, None)


async def test_batches_carry_what_came_meanwhile() -> None:
    box = Outbox()
    batches = box.batches()
    box.put(event("a", 1))
    box.put(event("b", 2))
    box.flush()
    assert await anext(batches) == (event("a", 1), event("b", 2))
    for token in (3, 4):
        box.put(event("a", token))
        box.flush()
    assert await anext(batches) == (event("a", 3), event("a", 4))
    box.put(event("a", 5))
    box.close()
    assert [batch async for batch in batches] == [(event("a", 5),)]


async def test_a_goodbye_comes_after_all_that_was_made() -> None:
    """What is sent after it would be computed again elsewhere, and sent twice."""
    box = Outbox()
    box.put(event("a", 1))
    box.close(leaving=True)
    assert [batch async for batch in box.batches()] == [(event("a", 1),), Goodbye()]


class Wire:
    """A lane that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    full = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.sent.append("closed")


@pytest.mark.parametrize(("leaving", "last"), [(True, Goodbye()), (False, "closed")])
def test_who_comes_to_a_closed_box_hears_how_it_ended(leaving: bool, last: Any) -> None:
    """A gateway that came while its replica went heard nothing, and took that for a loss."""
    box, wire = Outbox(), Wire()
    box.put(event("a", 1))
    box.close(leaving=leaving)
    box.attach({}, cast(Lane, wire))
    assert wire.sent == [(event("a", 1),), last]

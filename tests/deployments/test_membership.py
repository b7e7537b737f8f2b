"""How a replica finds out that Serve wants it no more."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import ReplicaUnavailableError

from deployments.membership import membership

REMOVED = ReplicaUnavailableError("r")
BROKEN = ActorUnavailableError("gone", b"\0" * 16)


class FakeHandle:
    """Answers pings from a script, and then no more."""

    def __init__(self, *script: BaseException | None) -> None:
        self._script = list(script)
        self.options_given: dict[str, Any] = {}
        self.empty = asyncio.Event()

    def options(self, **options: Any) -> "FakeHandle":
        self.options_given = options
        return self

    @property
    def remote(self) -> Callable[[], Any]:
        return self._ping

    async def _ping(self) -> None:
        if not self._script:
            self.empty.set()
            await asyncio.Event().wait()
        if (error := self._script.pop(0)) is not None:
            raise error


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        ((None, None, REMOVED, REMOVED, REMOVED, REMOVED), [True, False]),
        # As while Serve changes a setting of the one that runs.
        ((None, REMOVED, REMOVED, None, REMOVED), [True]),
        # Not known yet is not wanted no more.
        ((REMOVED, REMOVED, None), [True]),
        # A call that fails says nothing about what Serve wants.
        ((None, BROKEN, None), [True]),
        ((BROKEN, REMOVED), []),
        ((None, REMOVED, BROKEN, REMOVED, BROKEN), [True]),
        ((None, RuntimeError("bug"), None), [True]),
        ((None, REMOVED, REMOVED, REMOVED, None), [True, False, True]),
    ],
)
async def test_only_serves_word_counts(
    script: tuple[BaseException | None, ...], changes: list[bool]
) -> None:
    handle = FakeHandle(*script)
    seen: list[bool] = []

    async def follow() -> None:
        async for wanted in membership(handle, "r", 0.0):  # type: ignore[arg-type]
            seen.append(wanted)

    task = asyncio.create_task(follow())
    await asyncio.wait_for(handle.empty.wait(), 5)
    task.cancel()
    assert seen == changes
    # Among those that run: a replica that leaves can still be called by its name alone.
    assert handle.options_given == {"session_id": "member/r", "method_name": "ping"}

"""What we rely on in Serve's request router: a new minor release of Ray may change it."""

import asyncio
import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.request_router import RequestRouter

from deployments import pinning
from deployments.pinning import PinnedRequestRouter
from tests.deployments.conftest import plain_environment

ROOT = Path(__file__).parents[2]


def test_the_methods_that_are_overridden_exist_and_take_the_same() -> None:
    for name in ("initialize_state", "update_replicas", "_choose_replica_for_request"):
        base = inspect.signature(getattr(RequestRouter, name)).parameters
        ours = inspect.signature(getattr(PinnedRequestRouter, name)).parameters
        assert list(ours) == list(base)


@dataclass(frozen=True)
class Id:
    unique_id: str


class Bare(PinnedRequestRouter):
    """A router without the rest of Serve."""

    def __init__(self, appear_timeout_s: float) -> None:
        self.replicas: list[Any] = []
        self.initialize_state(appear_timeout_s=appear_timeout_s)

    @property
    def curr_replicas(self) -> dict[Any, Any]:
        return {replica.replica_id: replica for replica in self.replicas}

    def run(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        replicas: list[Any] = [SimpleNamespace(replica_id=Id(name)) for name in names]
        monkeypatch.setattr(
            RequestRouter, "update_replicas", lambda _, now: setattr(self, "replicas", now)
        )
        self.update_replicas(replicas)

    async def choose(self, name: str, *, is_retry: bool = False) -> str:
        request: Any = SimpleNamespace(metadata=SimpleNamespace(session_id=name))
        self._deployment_id = "Replica"  # type: ignore[assignment]
        chosen = await self._choose_replica_for_request(request, is_retry=is_retry)
        return str(chosen.replica_id.unique_id)


async def test_waits_for_one_that_was_never_seen_and_not_for_one_that_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Bare(appear_timeout_s=60)
    calls = [asyncio.create_task(router.choose("a")) for _ in range(2)]
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(router.choose("a")))
    await asyncio.sleep(0)
    # One that leaves, and another replica's coming, change nothing for the others.
    calls.pop().cancel()
    router.run(monkeypatch, "b")
    await asyncio.sleep(0)
    router.run(monkeypatch, "b", "a")
    assert await asyncio.wait_for(asyncio.gather(*calls), 5) == ["a", "a"]
    with pytest.raises(ReplicaUnavailableError):
        await Bare(appear_timeout_s=0.01).choose("c")


async def test_one_that_turned_the_call_away_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve itself would ask it for ever, and another has neither the stream nor the grant."""
    router = Bare(appear_timeout_s=60)
    router.run(monkeypatch, "a", "b")
    assert await router.choose("a") == "a"
    with pytest.raises(DeploymentUnavailableError):
        await asyncio.wait_for(router.choose("a", is_retry=True), 5)


async def test_one_that_serve_is_stopping_is_called_but_is_no_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has requests to finish, and a client that leaves has its own aborted there."""
    monkeypatch.setattr(pinning, "LEAVING", 1)
    router = Bare(appear_timeout_s=60)
    router.run(monkeypatch, "a", "b")
    assert await router.choose("member/a") == "a"
    router.run(monkeypatch, "b")
    assert await router.choose("a") == "a"
    with pytest.raises(ReplicaUnavailableError):
        await asyncio.wait_for(router.choose("member/a"), 5)
    # Of those that have gone for good, few are kept.
    router.run(monkeypatch)
    with pytest.raises(ReplicaUnavailableError):
        await asyncio.wait_for(router.choose("a"), 5)
    assert await router.choose("b") == "b"


async def test_a_call_to_whichever_replica_waits_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is how Serve's autoscaler learns, at no replicas, that one is wanted."""
    router = Bare(appear_timeout_s=0.01)
    call = asyncio.create_task(router.choose(""))
    for names in ((), ("a",)):
        await asyncio.sleep(0)
        assert not call.done()
        router.run(monkeypatch, *names)
    assert await asyncio.wait_for(call, 5) == "a"


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each life of a replica has a new name; a handle may live for months."""
    monkeypatch.setattr(pinning, "REMEMBERED", 3)
    monkeypatch.setattr(pinning, "LEAVING", 2)
    router = Bare(appear_timeout_s=1)
    for life in range(10):
        router.run(monkeypatch, "long-lived", f"life-{life}")
    assert set(router._seen) == {"long-lived", "life-8", "life-9"}
    assert list(router._leaving) == ["life-7", "life-8"]


@pytest.mark.cluster
@pytest.mark.timeout(150)
def test_a_burst_inside_one_request_goes_where_it_is_sent() -> None:
    """A router without FIFOMixin hung on 100 calls made inside one parent request."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.deployments.pin_app"],
        capture_output=True,
        text=True,
        timeout=140,
        env=plain_environment(),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "replicas": 2,
        "calls": 100,
        "misplaced": 0,
        "missing": "ReplicaUnavailableError",
    }

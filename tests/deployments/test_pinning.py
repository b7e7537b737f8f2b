"""What we rely on in Serve's request router: a new minor release of Ray may change it."""

import asyncio
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import ReplicaUnavailableError
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


class Bare(PinnedRequestRouter):
    """A router without the rest of Serve."""

    def __init__(self, appear_timeout_s: float) -> None:
        self.replicas: list[Any] = []
        self.initialize_state(appear_timeout_s=appear_timeout_s)

    @property
    def curr_replicas(self) -> dict[str, Any]:
        return {str(number): replica for number, replica in enumerate(self.replicas)}

    def run(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        replicas: list[Any] = [
            SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names
        ]
        monkeypatch.setattr(RequestRouter, "update_replicas", lambda *_: None)
        self.replicas = replicas
        self.update_replicas(replicas)

    async def choose(self, name: str) -> str:
        request: Any = SimpleNamespace(metadata=SimpleNamespace(session_id=name))
        chosen = await self._choose_replica_for_request(request)
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
    router.run(monkeypatch, "b")
    with pytest.raises(ReplicaUnavailableError):
        await asyncio.wait_for(router.choose("a"), 5)
    with pytest.raises(ReplicaUnavailableError):
        await Bare(appear_timeout_s=0.01).choose("c")


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each life of a replica has a new name; a handle may live for months."""
    monkeypatch.setattr(pinning, "REMEMBERED", 3)
    router = Bare(appear_timeout_s=1)
    for life in range(10):
        router.run(monkeypatch, "long-lived", f"life-{life}")
    assert set(router._seen) == {"long-lived", "life-8", "life-9"}


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

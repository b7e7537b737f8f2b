"""What we rely on in Serve's request router: a new minor release of Ray may change it."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray.serve.request_router import RequestRouter

from deployments.pinning import PinnedRequestRouter
from tests.deployments.conftest import plain_environment

ROOT = Path(__file__).parents[2]


def test_the_methods_that_are_overridden_exist_and_take_the_same() -> None:
    for name in ("initialize_state", "update_replicas", "_choose_replica_for_request"):
        base = inspect.signature(getattr(RequestRouter, name)).parameters
        ours = inspect.signature(getattr(PinnedRequestRouter, name)).parameters
        assert list(ours) == list(base)


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

"""Deploying anew beside a server that runs, as ``serve deploy`` does.

The script takes the Ray cluster's address and, as JSON, the settings, the number of replicas (null
if it is to be what the settings say), and whether to wait until Serve has done it.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from deployments.app import APP_NAME
from tests.deployments.conftest import Server

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
POLL_S = 0.05


async def deploy(
    server: Server, settings: Mapping[str, Any], replicas: int | None = None, *, wait: bool = True
) -> None:
    """Deploy other settings, or another number of replicas, and wait until that is done."""
    raylet = next(p for p in server.processes() if p.name() == "raylet")
    flag = "--gcs-address="
    (address, *_) = [a.removeprefix(flag) for a in raylet.cmdline() if a.startswith(flag)]
    # Ray's way in, and what Serve is to find in every process of it.
    needed = ("RAY_AUTH_", "RAY_SERVE_")
    variables = {k: v for k, v in raylet.environ().items() if k.startswith(needed)}
    arguments = [address, *map(json.dumps, (settings, replicas, wait))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, *arguments),
        env={**os.environ, **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def schema(settings: dict[str, Any], replicas: int | None) -> ServeDeploySchema:
    """What a file for ``serve deploy`` would hold."""
    more = [] if replicas is None else [{"name": "Replica", "num_replicas": replicas}]
    app = {
        "name": APP_NAME,
        "route_prefix": "/",
        "import_path": "deployments.app:build_app",
        "args": settings,
        "deployments": more,
    }
    return ServeDeploySchema.model_validate({"applications": [app]})


def main(address: str, settings: str, replicas: str, wait: str) -> None:
    """Deploy and, if told to, wait."""
    ray.init(address, log_to_driver=False)
    _get_global_client().deploy_apps(schema(json.loads(settings), json.loads(replicas)))
    deadline = time.monotonic() + TIMEOUT_S
    while json.loads(wait) and not _done():
        if time.monotonic() > deadline:
            raise TimeoutError(str(serve.status()))
        time.sleep(POLL_S)


def _done() -> bool:
    """Whether all runs as it should, and nothing else does any more."""
    app = serve.status().applications[APP_NAME]
    states = [deployment.replica_states for deployment in app.deployments.values()]
    return app.status == "RUNNING" and all(set(state) == {"RUNNING"} for state in states)


if __name__ == "__main__":
    main(*sys.argv[1:])

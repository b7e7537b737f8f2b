"""Run in a process of its own: a head and three machines that have room for one replica each.

Takes the model's folder. Prints one line of JSON: what nine streams said while nothing
happened, while a machine was lost, and while one was drained, and what Serve had left.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from deployments.app import APP_NAME
from deployments.config import ServeConfig
from deployments.launch import LocalCluster, free_ports, run_app, url, wait_ready

MACHINES = 3
STREAMS = 9
TOKENS = 800
# Something happens when each stream has come this far.
BEGUN = 5
DRAIN_S = 60.0


@dataclass(slots=True)
class Heard:
    """What a client has of one stream so far; ``end`` is why it ended."""

    text: str = ""
    events: int = 0
    end: str = ""


class Machines:
    """A Ray cluster of several machines on this one.

    The machines have a GPU each, which nobody uses, and no CPUs: what asks for CPUs stays on
    the head.
    """

    def __init__(self, folder: Path) -> None:
        # Ray notes its newest cluster there, for those that look for any.
        os.environ["RAY_TMPDIR"] = str(folder)
        self._cluster = Cluster()
        self._cluster.add_node(num_cpus=4, include_dashboard=False)
        self.workers = [self.add() for _ in range(MACHINES)]
        ray.init(self._cluster.address, log_to_driver=False, logging_level="ERROR")

    def add(self) -> Any:
        return self._cluster.add_node(num_cpus=0, num_gpus=1)

    def lose(self) -> None:
        """Pull the plug of the first machine."""
        self._cluster.remove_node(self.workers.pop(0), allow_graceful=False)

    def drain(self) -> None:
        """Do what Ray does on a machine that gets SIGTERM, as from Kubernetes."""
        client = self._cluster.head_node.get_gcs_client()
        reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        # Serve waits for a replacement for as long as there is time to; there is no room for one.
        deadline_ms = int((time.time() + DRAIN_S) * 1000)
        accepted, why = client.drain_node(self.workers[0].node_id, reason, "SIGTERM", deadline_ms)
        assert accepted, why

    def alive(self) -> int:
        return sum(node["Alive"] for node in ray.nodes()) - 1


async def listen(http: httpx.AsyncClient, number: int, heard: Heard) -> None:
    body = {
        "prompt": f"stream {number}",
        "max_tokens": TOKENS,
        # Greedy and seeded.
        "temperature": number % 2,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                heard.end += " and done"
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                heard.end = f"error: {event['error']['message']}"
                return
            (choice,) = event["choices"]
            heard.text += choice["text"]
            heard.events += 1
            heard.end = choice["finish_reason"] or ""


async def streams(base: str, disturb: Callable[[], None] = lambda: None) -> list[tuple[str, str]]:
    """Return text and end of nine streams, in the middle of which something happens."""
    heard = [Heard() for _ in range(STREAMS)]
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        tasks = [asyncio.create_task(listen(http, n, h)) for n, h in enumerate(heard)]
        while min(one.events for one in heard) < BEGUN:
            await asyncio.sleep(0.005)
        assert not any(one.end for one in heard), "a stream is over before the machine goes"
        await asyncio.to_thread(disturb)
        await asyncio.gather(*tasks)
    return [(one.text, one.end) for one in heard]


def running() -> int:
    states = serve.status().applications[APP_NAME].deployments["Replica"].replica_states
    return int(states.get("RUNNING", 0))


async def until(check: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.1)


def resumed(base: str) -> float:
    page = httpx.get(f"{base}/metrics", timeout=30).text.splitlines()
    lines = [line for line in page if line.startswith("tidegate:request_resumed_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def scenario(machines: Machines, base: str) -> dict[str, Any]:
    result: dict[str, Any] = {"running": [running()], "undisturbed": await streams(base)}

    result["lost"] = await streams(base, machines.lose)
    await until(lambda: running() == MACHINES - 1)
    # There is room for two replicas, and three are wanted.
    result["running"].append(running())
    result["health"] = httpx.get(f"{base}/health", timeout=30).status_code
    result["resumed"] = resumed(base)
    result["short"] = await streams(base)

    machines.workers.append(machines.add())
    await until(lambda: running() == MACHINES)
    result["running"].append(running())

    result["drained"] = await streams(base, machines.drain)
    # The machine ends by itself once nothing runs on it.
    await until(lambda: machines.alive() == MACHINES - 1)
    result["running"].append(running())
    result["resumed_by_drain"] = resumed(base) - result["resumed"]
    return result


def main(model: str) -> None:
    with LocalCluster() as local:
        machines = Machines(local.folder)
        config = ServeConfig.of(
            {
                "model": model,
                "replicas": MACHINES,
                "port": free_ports(1)[0],
                "device": "cpu",
                "num_gpus_per_replica": 1.0,
                "threads": 1,
                "num_blocks": 512,
                "drain_s": DRAIN_S,
            }
        )
        # All machines here have one address, which has room for one HAProxy.
        serve.start(
            proxy_location="HeadOnly", http_options={"host": config.host, "port": config.port}
        )
        run_app(config)
        wait_ready(config)
        print(json.dumps(asyncio.run(scenario(machines, url(config)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

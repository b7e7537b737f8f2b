"""Run in a process of its own: bursts of pinned calls inside one parent request.

Prints one line of JSON: where calls went, and what a replica that is not there answers.
"""

import asyncio
import json
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from deployments.config import ServeConfig
from deployments.launch import LocalCluster, free_ports
from deployments.pinning import PinnedRequestRouter

CALLS = 100


class Child:
    def __init__(self) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id

    async def name(self) -> str:
        await asyncio.sleep(0.01)
        return str(self._name)


class Parent:
    def __init__(self, children: Any) -> None:
        self._children = children

    async def burst(self, names: list[str]) -> dict[str, Any]:
        wanted = [names[i % len(names)] for i in range(CALLS)]
        calls = [self._children.options(session_id=w).name.remote() for w in wanted]
        got = await asyncio.gather(*calls)
        return {
            "calls": len(got),
            "misplaced": sum(g != w for g, w in zip(got, wanted, strict=True)),
        }

    async def missing(self) -> str:
        try:
            await self._children.options(session_id="nobody").name.remote()
        except Exception as error:
            return type(error).__name__
        return "an answer"


def main() -> None:
    with LocalCluster() as cluster:
        cluster.start(ServeConfig())
        serve.start(http_options={"host": "127.0.0.1", "port": free_ports(1)[0]})
        router: Any = RequestRouterConfig(
            request_router_class=PinnedRequestRouter,  # type: ignore[arg-type]
            request_router_kwargs={"appear_timeout_s": 0.5},
        )
        child: Any = serve.deployment(Child)
        parent: Any = serve.deployment(Parent)
        small = {"num_cpus": 0.1}
        children = child.options(
            num_replicas=2,
            max_ongoing_requests=1000,
            ray_actor_options=small,
            request_router_config=router,
        ).bind()
        app = parent.options(ray_actor_options=small, max_ongoing_requests=1000).bind(children)
        handle: Any = serve.run(app, name="pin", route_prefix=None)
        names = _replica_names()
        result = {"replicas": len(names), **handle.burst.remote(names).result(timeout_s=60)}
        result["missing"] = handle.missing.remote().result(timeout_s=60)
        print(json.dumps(result), flush=True)


def _replica_names() -> list[str]:
    import ray

    actors = ray.util.list_named_actors(all_namespaces=True)
    prefix = "SERVE_REPLICA::pin#Child#"
    return [a["name"].removeprefix(prefix) for a in actors if a["name"].startswith(prefix)]


if __name__ == "__main__":
    main()

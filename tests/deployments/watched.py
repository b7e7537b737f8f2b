"""A deployment to look at: a real router, and what answers for it over HTTP."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import uvicorn
from fastapi import Request
from starlette.responses import JSONResponse, Response

from deployments.http import build_http
from deployments.load import snapshot
from deployments.messages import Vitals
from deployments.metrics import Counts
from deployments.openai.errors import Unauthorized
from router.core import RouterConfig, RouterCore
from router.report import Report
from router.ticket import Ticket
from tests.deployments.conftest import eventually

KEY = "sk-right"


class Deployment:
    """A router that hears from replicas by hand, and what answers for it.

    Attributes:
        key: the API key, if it asks for one.
        down: it says that the router is away.
        foreign: something else answers, with this.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.core = RouterCore(RouterConfig(lookahead=0), lambda: self.now, Random(0))
        self.vitals: dict[str, Vitals] = {}
        self.counts = Counts()
        self.key: str | None = None
        self.down = False
        self.foreign: Response | None = None
        self._seq: dict[str, int] = {}

    def report(self, name: str, total: int, free: int, **more: Any) -> None:
        """Hear from a replica; the router has settled when all were heard twice."""
        seq = self._seq[name] = self._seq.get(name, 0) + 1
        plain = Report(
            replica=name,
            seq=seq,
            total_blocks=total,
            free_blocks=free,
            running=(total - free) // 8,
            max_seqs=64,
            waiting=0,
            waiting_blocks=0,
            max_waiting=64,
            held=() if seq == 1 else None,
        )
        self.core.report(replace(plain, **more))
        self.vitals[name] = Vitals(True, 3, 100)

    def ask(self, name: str, priority: int, blocks: int) -> None:
        self.core.acquire(Ticket(name, priority, 0, blocks, blocks))

    def snapshot(self) -> dict[str, Any]:
        gauges = self.core.gauges()
        return snapshot("SmolLM2-135M-Instruct", gauges, self.vitals, {}, self.counts)

    async def load(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            raise Unauthorized("no")
        if self.foreign is not None:
            return self.foreign
        if self.down:
            return JSONResponse({}, 503)
        return JSONResponse(self.snapshot())

    async def generate(self, *_: Any) -> Response:
        raise NotImplementedError

    models = health = metrics = generate


def busy(deployment: Deployment) -> None:
    """Three replicas, one of them full and one that is to go, and a queue."""
    for _ in range(2):
        deployment.report("n3f8a1kq", 512, 128)
        deployment.report("p0c7w2ze", 512, 20, waiting=2)
        deployment.report("x9d4m6tb", 256, 192, leaving=True)
        deployment.now += 61
    deployment.report("n3f8a1kq", 512, 128)
    deployment.report("p0c7w2ze", 512, 20, waiting=2)
    deployment.report("x9d4m6tb", 256, 192, leaving=True)
    for index, priority in enumerate([5, 5, 0, 0, 0, -10]):
        deployment.ask(f"t{index}", priority, 200)
        deployment.now += 0.25


@contextlib.contextmanager
def served(deployment: Deployment, port: int) -> Iterator[None]:
    config = uvicorn.Config(build_http(deployment), port=port, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started)
    yield
    server.should_exit = server.force_exit = True
    thread.join()

"""A gateway without a cluster, around a router and a replica that do what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from deployments import gateway as module
from deployments.calls import Gone
from deployments.config import ServeConfig
from deployments.gateway import Gateway
from deployments.messages import Refusal, RefusalKind, ReplicaInfo
from deployments.metrics import Counts
from engine.submission import Detail, Submission, TokenLogprobs
from router.ticket import Ticket

INFO = ReplicaInfo(fingerprint="f", block_tokens=4, total_blocks=20, max_model_len=128)


class FakeRouter:
    """Stands for the `RouterClient`."""

    def __init__(self) -> None:
        self.well = True
        self.gone = False
        self.answer: str | Refusal = Refusal(RefusalKind.BUSY, retry_after=2.5)
        self.counts = Counts()
        self.released: list[str] = []
        self.admitted: list[int] = []
        self.placed: list[Ticket] = []

    async def describe(self) -> ReplicaInfo:
        return INFO

    async def known(self) -> ReplicaInfo | None:
        return INFO if self.well else None

    async def healthy(self) -> bool:
        return self.well

    async def place(self, ticket: Ticket, *, bounced: bool) -> str | Refusal:
        await asyncio.sleep(0)
        self.placed.append(ticket)
        return self.answer

    async def admit(self, tickets: Any) -> Refusal | None:
        await asyncio.sleep(0)
        self.admitted.append(len(tickets))
        return self.answer if isinstance(self.answer, Refusal) else None

    def release(self, ticket: str, *, finished: bool) -> None:
        self.released.append(ticket)

    def nobody(self) -> Refusal:
        return Refusal(RefusalKind.NO_REPLICA, retry_after=5.0)

    async def count(self, counts: Counts) -> None:
        await asyncio.sleep(0)
        if self.gone:
            raise Gone("restarting")
        self.counts.merge(counts)

    async def metrics(self, model: str) -> str:
        if self.gone:
            raise Gone("restarting")
        return f"{sum(self.counts.counters.values())}\n"

    async def load(self, model: str) -> dict[str, Any]:
        tenants = [{"tenant": name} for name in ("search", "batch")]
        return {"model": model, "replicas": [], "tenants": tenants}

    async def keep_lane(self) -> None:
        await asyncio.Event().wait()

    async def keep_session(self) -> None:
        await asyncio.Event().wait()


class FakeLink:
    """A replica that answers each request with two tokens, a and b, or with a script.

    Attributes:
        submissions: what it was given.
        script: tokens and text of each step instead, if there are any; ends with stop.
        cached: tokens of each prompt that its prefix cache held.
    """

    replica = "r"
    info = INFO

    def __init__(self) -> None:
        self.script: list[tuple[tuple[int, ...], str]] = []
        self.cached = 0
        self.listeners: dict[str, Any] = {}
        self.submissions: list[Submission] = []

    def listen(self, key: str, listener: Any) -> None:
        self.listeners[key] = listener

    def forget(self, key: str) -> None:
        self.listeners.pop(key, None)

    async def submit(
        self, submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> None:
        self.submissions.append(submission)
        loop, key = asyncio.get_running_loop(), submission.key
        listener = self.listeners[key]
        for at, (tokens, text) in enumerate(self.script):
            finish = "stop" if at == len(self.script) - 1 else None
            logprobs = tuple(TokenLogprobs(token, -0.5) for token in tokens)
            detail = None if submission.params.logprobs is None else Detail(logprobs=logprobs)
            loop.call_soon(listener, (key, tokens, text, finish, None, detail))
        if self.script:
            return
        first = replace(_detail(submission, 65, first=True), cached_tokens=self.cached)
        told = submission.params.logprobs is not None
        last = _detail(submission, 66, first=False) if told else None
        if submission.params.max_tokens == 1:
            loop.call_soon(listener, (key, (65,), "a", "length", None, first))
        else:
            loop.call_soon(listener, (key, (65,), "a", None, None, first))
            loop.call_soon(listener, (key, (66,), "b", "length", None, last))

    async def abort(self, keys: Any) -> None:
        pass


def _detail(submission: Submission, token: int, *, first: bool) -> Detail:
    """What an engine would tell beside a token: log-probabilities, if they were asked for."""
    params = submission.params
    if params.logprobs is None:
        return Detail(queued_s=0.0)
    generated = TokenLogprobs(token, -0.5, ((token, -0.5),) * bool(params.logprobs))
    prompt: tuple[TokenLogprobs | None, ...] = ()
    if first and params.prompt_logprobs is not None:
        prompt = (None, *(TokenLogprobs(id, -1.5) for id in submission.prompt[1:]))
    return Detail(logprobs=(generated,), prompt_logprobs=prompt)


class House:
    """A gateway, with all that it needs.

    Attributes:
        gateway: it.
        app: its HTTP application.
        http: speaks to it.
        router, link: what it speaks to.
    """

    def __init__(
        self,
        gateway: Gateway,
        app: FastAPI,
        http: httpx.AsyncClient,
        router: FakeRouter,
        link: FakeLink,
    ) -> None:
        self.gateway = gateway
        self.app = app
        self.http = http
        self.router = router
        self.link = link


@asynccontextmanager
async def open_house(model: Path, **settings: Any) -> AsyncIterator[House]:
    """Build a gateway for a model; nothing of Ray is asked."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="g"))
    router, link = FakeRouter(), FakeLink()

    async def connect(replica: str) -> FakeLink:
        return link

    none: Any = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.serve, "get_replica_context", lambda: context)
        patch.setattr(module, "RouterClient", lambda *_: router)
        patch.setattr(
            module, "HandleChannel", lambda *_: SimpleNamespace(connect=connect, heed=None)
        )
        config = ServeConfig.of({"model": str(model), "served_model_name": "m", **settings})
        gateway = Gateway(config, none, none)
    app = gateway.__serve_build_asgi_app__()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield House(gateway, app, http, router, link)
    for task in gateway._background:
        task.cancel()


def error(answer: httpx.Response) -> dict[str, Any]:
    """Return the fields of an answer's error; it must wear the envelope."""
    (name,) = answer.json()
    assert name == "error"
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return dict(answer.json()["error"])

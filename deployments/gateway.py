"""Gateway: HTTP in, a placed and streamed request out. Wire details are in ``openai``."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Sequence as Many
from functools import partial
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI, Request
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.responses import JSONResponse, Response

from deployments.answer import AnswerStream, Choices, ClosingStream
from deployments.calls import Gone, detached
from deployments.channel import HandleChannel, ReplicaLost
from deployments.config import ServeConfig
from deployments.dispatch import Sequence
from deployments.exposition import CONTENT_TYPE
from deployments.group import admit
from deployments.http import build_http
from deployments.intake import Arrival, Intake, Prepare, Work
from deployments.load import seen_by
from deployments.logs import join_serve
from deployments.messages import Refusal, ReplicaInfo
from deployments.metrics import Counts
from deployments.openai.call import Job
from deployments.openai.document import Document
from deployments.openai.errors import out_of_time
from deployments.openai.terms import Limits, Terms
from deployments.order import Order, Refused
from deployments.periods import COUNT_S
from deployments.prompt_scores import Emit
from deployments.refused import api_error
from deployments.router_client import RouterClient
from deployments.tracing import Tracing
from deployments.visit import note, timeline_of

KEEP_ALIVE_S: Final = 5.0
METRICS_S: Final = 5.0


class Gateway:
    """An HTTP front end; keeps no state that another could not do without."""

    def __init__(
        self, config: ServeConfig, router: DeploymentHandle, replicas: DeploymentHandle
    ) -> None:
        join_serve(config.log_level)
        self._config = config
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._tracing = Tracing.of(config.otlp_endpoint, os.environ, self._name, time.time_ns)
        self._counts = Counts()
        self._handing: asyncio.Task[None] | None = None
        self._rng = random.SystemRandom()
        self._channel = HandleChannel(replicas, self._name, self._on_lost)
        self._router = RouterClient(
            router,
            self._name,
            self._rng,
            config.hold_s,
            max(1, config.max_queued),
            self._channel.heed,
        )
        self._serial = 0
        self._started = int(time.time())
        self._intake = Intake(config, self._rng)
        locked = config.key is not None or config.key_file is not None
        self._document = Document(version("tidegate"), locked)
        self._info: ReplicaInfo | None = None
        self._background = [
            detached(self._router.keep_session()),
            detached(self._router.keep_lane()),
            detached(self._keep_counting()),
        ]

    def __serve_build_asgi_app__(self) -> FastAPI:
        config = self._config
        return build_http(
            self,
            self._tracing,
            log_requests=config.log_requests,
            cors_origins=config.cors_origins,
        )

    def __del__(self) -> None:
        if tracing := getattr(self, "_tracing", None):
            tracing.close()

    # ---- the endpoints ----------------------------------------------------------------

    async def generate(self, request: Request, prepare: Prepare) -> Response:
        """Answer a chat or completions request."""
        intake, headers = self._intake, request.headers
        arrived = intake.arrival(request)
        body = await intake.read(request)
        served = intake.served
        # What is wrong with a request is said though no replica is there yet.
        call = await intake.call(prepare, body, headers, arrived.tenant)
        info = await self._replica_info(call.terms.limits, arrived)
        if intake.served is not served:  # the first time, since it is now known what fits
            call = await intake.call(prepare, body, headers, arrived.tenant)
        choices = Choices(call, info.fingerprint, arrived.request_id, intake.names, intake.pool)
        priority = call.terms.priority
        note(arrived.scope, call.model, arrived.tenant.name, priority, call.prompt_tokens)
        choices.start(partial(self._sequence, call.terms, arrived, info), self._admit)
        if not call.terms.stream:
            try:
                return Response(await choices.answer(), media_type="application/json")
            finally:
                choices.close()
        stream = AnswerStream(choices, KEEP_ALIVE_S)
        try:
            # A refusal has to come before the first byte.
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return ClosingStream(stream)

    async def models(self, request: Request) -> Response:
        """List the one model."""
        self._intake.require_key(request.headers)
        await self._look_for_info()
        return JSONResponse(self._intake.served.listing(self._started))

    async def model(self, request: Request, name: str) -> Response:
        """Tell of the one model.

        Raises:
            NotFound: it has another name.
        """
        self._intake.require_key(request.headers)
        await self._look_for_info()
        served = self._intake.served
        served.require_name({"model": name})
        return JSONResponse(served.card(self._started))

    async def health(self) -> Response:
        """Say whether a replica makes progress.

        Raises:
            ApiError: none does (503).
        """
        if await self._router.healthy():
            return JSONResponse({"status": "ok"})
        raise api_error(Refused(self._router.nobody()))

    async def metrics(self) -> Response:
        """Return the Prometheus page of the whole deployment.

        Raises:
            ApiError: the router is being restarted (503).
        """
        try:
            async with asyncio.timeout(METRICS_S):
                await self._hand_over()
            page = await self._router.metrics(self._intake.served.name)
        except (Gone, TimeoutError):
            raise api_error(Refused(self._router.nobody())) from None
        return Response(page, media_type=CONTENT_TYPE)

    async def load(self, request: Request) -> Response:
        """Return queue and blocks of each replica, and of the tenants the one that asks.

        Raises:
            ApiError: the router is being restarted (503).
        """
        tenant = self._intake.require_key(request.headers)
        try:
            load = await self._router.load(self._intake.served.name)
        except Gone:
            raise api_error(Refused(self._router.nobody())) from None
        seen = seen_by(tenant.name, load)
        return JSONResponse(seen, headers={"Cache-Control": "no-store"})

    async def tokenize(self, request: Request, work: Work) -> Response:
        """Answer a request that needs the tokenizer alone."""
        await self._look_for_info()
        return JSONResponse(await self._intake.tell(work, request))

    async def version(self, request: Request) -> Response:
        """Return the version of this software."""
        self._intake.require_key(request.headers)
        return JSONResponse({"version": version("tidegate")})

    async def document(self) -> Response:
        """Return the OpenAPI document."""
        body = self._document.body(self._intake.served)
        return Response(body, media_type="application/json")

    # ---- what they need ---------------------------------------------------------------

    async def _replica_info(self, limits: Limits, arrived: Arrival) -> ReplicaInfo:
        """Return what the replicas are; the first time, wait for one.

        Raises:
            ApiError: none comes in time (503), or in the client's (504).
        """
        if self._info is None:
            seconds, what = limits.first()
            began_ago = time.monotonic() - arrived.began
            try:
                async with asyncio.timeout(None if seconds is None else seconds - began_ago):
                    answer = await self._router.describe()
            except TimeoutError:
                raise out_of_time(what) from None
            if isinstance(answer, Refusal):
                raise api_error(Refused(answer))
            self._learn(answer)
            return answer
        return self._info

    async def _look_for_info(self) -> None:
        """Learn what the replicas are if one is there: their pools may hold less than a context."""
        if self._info is None and (info := await self._router.known()) is not None:
            self._learn(info)

    def _learn(self, info: ReplicaInfo) -> None:
        self._info = info
        self._intake.learn(info)

    def _sequence(
        self, terms: Terms, arrived: Arrival, info: ReplicaInfo, job: Job, emit: Emit
    ) -> Sequence:
        self._serial += 1
        limits = terms.limits
        timeline = timeline_of(arrived.scope, len(job.prompt), job.params.max_tokens)
        order = Order(
            key=f"{self._name}-{self._serial}",
            prompt=job.prompt,
            params=job.params,
            priority=terms.priority,
            arrival=arrived.wall_ms,
            began=arrived.began,
            request_id=arrived.request_id,
            tenant=arrived.tenant.name,
            first_token_at=_later(arrived.began, limits.first_token_s),
            end_at=_later(arrived.began, limits.end_s),
            traceparent=timeline.traceparent,
            salt=self._intake.salt(arrived.tenant, terms),
            prefix=job.prefix,
        )
        return Sequence(
            order,
            info,
            self._router,
            self._channel,
            self._counts,
            self._config.hold_s,
            emit,
            timeline,
        )

    async def _admit(self, sequences: Many[Sequence]) -> None:
        await admit(sequences, self._router)

    def _on_lost(self, lost: ReplicaLost) -> None:
        # Also when nothing ran there: the router is to place nothing more on it.
        detached(self._router.lost(lost.replica, certain=lost.certain))

    async def _keep_counting(self) -> None:
        """Hand what was counted to the router once a second; nothing is lost if it is away."""
        while True:
            await asyncio.sleep(COUNT_S)
            if self._counts:
                with contextlib.suppress(Gone):
                    await self._hand_over()

    async def _hand_over(self) -> None:
        """Hand what was counted to the router, one such message at a time.

        Raises:
            Gone: there is no router.
        """
        if self._handing is None or self._handing.done():
            # Not cancelled with a scraper that leaves: nobody would know whether it arrived.
            self._handing = detached(self._count())
        await asyncio.shield(self._handing)

    async def _count(self) -> None:
        counts = self._counts.take()
        try:
            await self._router.count(counts)
        except BaseException:
            self._counts.merge(counts)
            raise


def _later(moment: float, seconds: float | None) -> float | None:
    return None if seconds is None else moment + seconds

"""The HTTP application: which path leads where."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from deployments.dashboard import page
from deployments.openai import chat, completions
from deployments.openai import tokenize as tokens
from deployments.openai.call import Call
from deployments.openai.errors import install_error_handlers
from deployments.tracing import Tracing
from deployments.visit import Visits

# Headers of answers that scripts of other origins may read.
_TOLD_TO_PAGES = ("x-request-id", "retry-after", "retry-after-ms", "x-should-retry")


class Endpoints(Protocol):
    """What answers; a Gateway."""

    async def generate(self, request: Request, prepare: Callable[..., Call]) -> Response: ...

    async def models(self, request: Request) -> Response: ...

    async def model(self, request: Request, name: str) -> Response: ...

    async def tokenize(self, request: Request, work: Callable[..., dict[str, Any]]) -> Response: ...

    async def version(self, request: Request) -> Response: ...

    async def document(self) -> Response: ...

    async def health(self) -> Response: ...

    async def metrics(self) -> Response: ...

    async def load(self, request: Request) -> Response: ...


def build_http(
    gateway: Endpoints,
    tracing: Tracing | None = None,
    *,
    log_requests: bool = False,
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """Return the HTTP application: paths, and errors in the envelope.

    Serve itself echoes the client's x-request-id, or makes one.

    Args:
        gateway: what answers.
        tracing: makes spans of requests, if there are to be any.
        log_requests: log a line for each request.
        cors_origins: whose pages may call from a browser; "*" is anybody's.
    """
    app = FastAPI(
        title="Tidegate",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    install_error_handlers(app)
    if tracing is not None or log_requests:
        app.add_middleware(Visits, tracing=tracing, log=log_requests)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=_TOLD_TO_PAGES,
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await gateway.generate(request, chat.prepare)

    @app.post("/v1/completions")
    async def text_completions(request: Request) -> Response:
        return await gateway.generate(request, completions.prepare)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        return await gateway.models(request)

    @app.get("/v1/models/{model:path}")
    async def one_model(request: Request, model: str) -> Response:
        return await gateway.model(request, model)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        return await gateway.tokenize(request, tokens.tokenize)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        return await gateway.tokenize(request, tokens.detokenize)

    @app.get("/version")
    async def version(request: Request) -> Response:
        return await gateway.version(request)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return await gateway.document()

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return await gateway.health()

    @app.api_route("/metrics", methods=["GET", "HEAD"])
    async def metrics() -> Response:
        return await gateway.metrics()

    @app.get("/load")
    async def load(request: Request) -> Response:
        return await gateway.load(request)

    # Open to all, since there is nothing in it: what it shows comes from /load.
    @app.get("/dashboard")
    async def dashboard() -> Response:
        return page("index.html")

    @app.get("/dashboard/{name}")
    async def dashboard_file(name: str) -> Response:
        return page(name)

    return app

"""Intake: from an HTTP request to what it asks for, whose it is, and when it came."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

from fastapi import Request
from starlette.types import Scope

from deployments.chat_template import use_template
from deployments.config import ServeConfig
from deployments.keys import Keyring
from deployments.messages import ReplicaInfo
from deployments.openai.body import read_limited
from deployments.openai.call import Call
from deployments.openai.defaults import sampling_defaults
from deployments.openai.length import longest_token
from deployments.openai.served import Served
from deployments.openai.terms import Terms
from deployments.openai.tokens import TokenNames
from deployments.openai.tool_formats import dialect_of
from deployments.prefixes import with_prefixes
from deployments.tenant import Tenant
from deployments.visit import request_id
from engine.loader import load_tokenizer, resolve
from engine.model_info import model_info
from engine.prefix_hash import salt_of

Prepare = Callable[..., Call]
Work = Callable[..., dict[str, Any]]

# Tokenising this many bytes takes well under a millisecond: less than changing threads.
_SHORT_BODY: Final = 2048

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, whose it is, and what its client calls it.

    Attributes:
        wall_ms: wall clock, ms: machines compare it.
        began: this process's monotonic clock, in seconds: durations are measured by it.
        tenant: whose key it carries.
        request_id: the x-request-id; Serve makes one where the client gave none.
        scope: of the HTTP request, for whoever watches it.
    """

    wall_ms: int
    began: float
    tenant: Tenant
    request_id: str
    scope: Scope

    @classmethod
    def of(cls, request: Request, keyring: Keyring) -> Self:
        """Note the arrival of a request, now.

        Raises:
            Unauthorized: its key is not known.
        """
        wall_ms, began = time.time_ns() // 1_000_000, time.monotonic()
        name = request_id(request.headers)
        return cls(wall_ms, began, keyring.tenant(request.headers), name, request.scope)


class Intake:
    """Reads and understands requests; what is wrong with one is said here.

    Args:
        config: names the model and the bounds.
        rng: for ids, and for seeds that clients did not give.

    Attributes:
        names: of the tokens.
        pool: for what would hold up the event loop.
        served: the model and its bounds.
    """

    def __init__(self, config: ServeConfig, rng: random.Random) -> None:
        self._keyring = Keyring.of(config)
        self._max_body_bytes = config.max_body_bytes
        self._rng = rng
        self._apart = config.prefix_cache_scope == "tenant"
        self._block_tokens = config.block_size if config.by_prefix else None
        folder = resolve(config.model)
        info = model_info(folder)
        self._tokenizer = load_tokenizer(folder)
        use_template(self._tokenizer, config)
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self.names = TokenNames(self._tokenizer)
        self.served = Served(
            name=config.name,
            max_model_len=config.max_model_len or info.max_model_len,
            vocab_size=info.vocab_size,
            max_prompts=config.max_prompts,
            priorities=(-config.max_priority, config.max_priority),
            vllm_priority=config.vllm_priority,
            tiers=config.tiers,
            defaults=sampling_defaults(folder) if config.generation_config == "model" else {},
            dialect=dialect_of(config.tool_format, self._tokenizer),
            longest_token=longest_token(self._tokenizer),
        )

    def arrival(self, request: Request) -> Arrival:
        """Note the arrival of a request, now.

        Raises:
            Unauthorized: its key is not known.
        """
        return Arrival.of(request, self._keyring)

    def require_key(self, headers: Mapping[str, str]) -> Tenant:
        """Let only those in who have a key, where there are any, and say whose it is.

        Raises:
            Unauthorized: it is missing, or not known.
        """
        return self._keyring.tenant(headers)

    async def read(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            ApiError: it is too large, or compressed.
        """
        return await read_limited(request.stream(), request.headers, self._max_body_bytes)

    async def call(
        self, prepare: Prepare, body: bytes, headers: Mapping[str, str], tenant: Tenant
    ) -> Call:
        """Return what a request asks for.

        Args:
            prepare: that of its endpoint.
            body: of the request.
            headers: of the request.
            tenant: whose it is.

        Raises:
            ApiError: what is wrong with it.
        """
        served = self.served.within(tenant.min_priority, tenant.max_priority)
        work = prepare if self._block_tokens is None else self._with_prefixes(prepare, tenant)
        return await self._off_loop(
            work, body, headers, self._tokenizer, served, self._rng, time.time()
        )

    def salt(self, tenant: Tenant, terms: Terms) -> bytes:
        """Return what a request must have in common with whom it shares cached blocks."""
        return salt_of(tenant.name if self._apart else "", terms.cache_salt)

    def _with_prefixes(self, prepare: Prepare, tenant: Tenant) -> Prepare:
        """Add what the router is to know of the prompts: off the loop, if tokenising is."""
        assert self._block_tokens is not None
        block_tokens = self._block_tokens

        def work(*arguments: Any) -> Call:
            call = prepare(*arguments)
            return with_prefixes(call, block_tokens, self.salt(tenant, call.terms))

        return work

    async def tell(self, work: Work, request: Request) -> dict[str, Any]:
        """Return the answer to a request that needs the tokenizer alone.

        Raises:
            ApiError: what is wrong with it.
        """
        self.require_key(request.headers)
        body = await self.read(request)
        return await self._off_loop(work, body, self._tokenizer, self.served)

    def learn(self, info: ReplicaInfo) -> None:
        """Hold requests to what a replica holds: a pool smaller than the context is the limit."""
        room = min(info.max_model_len, info.total_blocks * info.block_tokens)
        self.served = replace(self.served, max_model_len=room)

    async def _off_loop(self, work: Callable[..., T], body: bytes, *arguments: Any) -> T:
        """Do what may take as long as tokenising a body, without holding up others."""
        if len(body) <= _SHORT_BODY:
            return work(body, *arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, work, body, *arguments)

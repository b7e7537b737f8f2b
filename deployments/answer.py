"""From the events of a call's sequences to its answer, streamed or whole."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from collections.abc import Sequence as Many
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeAlias

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from deployments.calls import detached
from deployments.dispatch import Sequence
from deployments.messages import Event
from deployments.openai.call import Call, Choice, Finish, Job, Usage
from deployments.openai.errors import ApiError, internal
from deployments.openai.sse import HEADERS, KEEP_ALIVE, MEDIA_TYPE, EventStream, compact, in_parts
from deployments.openai.tokens import TokenNames
from deployments.openai.view import View
from deployments.order import Failed, Refused
from deployments.prompt_scores import Emit, PromptScores
from deployments.refused import api_error
from engine.request import FinishReason

logger = logging.getLogger(__name__)

# An answer, its choices, one of them, its log-probabilities.
_BODY_DEPTH: Final = 4

Gain: TypeAlias = tuple[int, str, Finish | None, View | None]
"""What a choice gained in a step: its index, new text, and why it ended if it did.

Its view has the rest; None for a choice that is just its text.
"""


class Choices:
    """The sequences of one call, carried out side by side and read together. One reader.

    Use ``close`` in a ``finally``.

    Args:
        call: what was asked.
        fingerprint: of the replicas' numerics.
        request_id: of the HTTP request, for logs.
        names: of the vocabulary, for log-probabilities.
        pool: for what would hold up the event loop.
    """

    def __init__(
        self, call: Call, fingerprint: str, request_id: str, names: TokenNames, pool: Executor
    ) -> None:
        self.call = call
        self.fingerprint = fingerprint
        self.request_id = request_id
        self.pool = pool
        self._tasks: list[asyncio.Task[None]] = []
        self._came: deque[tuple[int, Event | Refused | Failed]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._views = [View.of(call, index, names) for index in range(len(call.jobs))]
        self._tokens = 0
        self._cached = 0

    @property
    def usage(self) -> Usage:
        """Tokens of what was read so far."""
        return Usage(self.call.prompt_tokens, self._tokens, self._cached)

    def start(
        self,
        make: Callable[[Job, Emit], Sequence],
        admit: Callable[[Many[Sequence]], Awaitable[None]],
    ) -> None:
        """Begin, with one sequence for each job.

        They run outside the context of the HTTP request: Serve must not cancel their calls
        when the client leaves, for then nobody would know what is still running where.

        Args:
            make: makes a sequence.
            admit: gets places for several sequences, or for none of them.
        """
        emits = self._emits()
        sequences = [make(job, emit) for job, emit in zip(self.call.jobs, emits, strict=True)]
        if len(sequences) == 1:
            self._tasks.append(sequences[0].start())
        else:
            self._tasks.append(detached(self._start_together(sequences, admit)))

    def _emits(self) -> list[Emit]:
        """What takes the events of each choice."""
        jobs, each = self.call.jobs, self.call.each
        if each == 1 or jobs[0].params.prompt_logprobs is None:
            return [partial(self._put, index) for index in range(len(jobs))]
        emits: list[Emit] = []
        for first in range(0, len(jobs), each):
            scores = PromptScores(self._put)
            own = range(first, first + each)
            emits += [scores.emit(index, leads=index == first) for index in own]
        return emits

    async def _start_together(
        self, sequences: Many[Sequence], admit: Callable[[Many[Sequence]], Awaitable[None]]
    ) -> None:
        try:
            await admit(sequences)
        except (Refused, Failed) as error:
            self._put(0, error)
        except Exception as error:
            logger.exception("request: a bug", extra={"request_id": self.request_id})
            self._put(0, Failed(repr(error)))
        else:
            # In the same turn: what was let in and is not started would have to be dropped.
            self._tasks += [sequence.start() for sequence in sequences]

    async def read(self, timeout_s: float | None = None) -> Gain | None:
        """Return what one choice gained next, or None when nothing came in time.

        Raises:
            ApiError: a sequence was turned away or failed; the whole call ends with it.
        """
        if not self._came:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake
            except TimeoutError:
                return None
        index, event = self._came.popleft()
        if isinstance(event, Refused | Failed):
            raise api_error(event, self.call.form) from event
        _, tokens, text, reason, _, detail = event
        finish = None if reason is None else FinishReason(reason)
        view = self._views[index]
        if detail is not None and index % self.call.each == 0:
            # As the prompt counts once, so does what was found of it: for its first choice.
            self._cached += detail.cached_tokens
        if view is None:
            self._tokens += len(tokens)
            return index, text, finish, None
        if not self.call.jobs[index].mute:
            self._tokens += len(tokens)
        return index, *view.see(text, finish, detail), view

    async def answer(self) -> bytes:
        """Return the body of an answer that is not streamed, in JSON.

        Raises:
            ApiError: see ``read``.
        """
        texts: list[list[str]] = [[] for _ in self.call.jobs]
        ends: dict[int, Finish] = {}
        while len(ends) < len(texts):
            if (came := await self.read()) is not None:
                index, text, finish, _ = came
                texts[index].append(text)
                if finish is not None:
                    ends[index] = finish
        if not any(view is not None and view.large for view in self._views):
            return compact(self._body(texts, ends)).encode()

        def spell() -> bytes:
            return in_parts(self._body(texts, ends), _BODY_DEPTH).encode()

        return await asyncio.get_running_loop().run_in_executor(self.pool, spell)

    def _body(self, texts: Many[Many[str]], ends: Mapping[int, Finish]) -> dict[str, object]:
        choices = []
        for index, view in enumerate(self._views):
            rest = () if view is None else (view.logprobs(), view.calls())
            choices.append(Choice("".join(texts[index]), ends[index], *rest))
        return self.call.answer(choices, self.usage, self.fingerprint)

    def close(self) -> None:
        """Drop all that still runs; may be called at any time, and again."""
        for task in self._tasks:
            task.cancel()

    def _put(self, index: int, event: Event | Refused | Failed) -> None:
        self._came.append((index, event))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class AnswerStream:
    """The server-sent events of one call.

    Args:
        choices: where they come from.
        keep_alive_s: a comment goes out when nothing else has for so long.
    """

    def __init__(self, choices: Choices, keep_alive_s: float) -> None:
        self._choices = choices
        self._keep_alive_s = keep_alive_s
        self._wire = EventStream(choices.call, choices.fingerprint)
        self._left = len(choices.call.jobs)
        self._shows_usage = choices.call.terms.continuous_usage
        self._first: bytes = b""

    async def begin(self) -> None:
        """Wait for the first event, but not for longer than a client should hear nothing.

        Raises:
            ApiError: the call was turned away, or failed before it gave anything.
        """
        self._first = await self._next()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the stream; what goes wrong from here on is an event of it."""
        yield self._first
        try:
            while self._left:
                if data := await self._next():
                    yield data
            yield self._wire.end(self._choices.usage)
        except ApiError as error:
            yield self._wire.fail(error)
        except Exception:
            # A bug; but a stream that just ends would be read as a success.
            fields = {"request_id": self._choices.request_id}
            logger.exception("request: its stream failed", extra=fields)
            yield self._wire.fail(internal())

    async def _next(self) -> bytes:
        came = await self._choices.read(self._keep_alive_s)
        if came is None:
            return KEEP_ALIVE
        index, text, finish, view = came
        self._left -= finish is not None
        usage = self._choices.usage if self._shows_usage else None
        if view is None:
            return self._wire.push(index, text, finish, None, usage)

        def push() -> bytes:
            return self._wire.push(index, text, finish, view.logprobs(), usage, view.calls())

        if not view.large:
            return push()
        return await asyncio.get_running_loop().run_in_executor(self._choices.pool, push)


class ClosingStream(StreamingResponse):
    """A stream that cleans up however it ends, also if it never began.

    The generator's own ``finally`` would not do: one that was never started has none.
    """

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, media_type=MEDIA_TYPE, headers=dict(HEADERS))
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

"""From the events of a call's sequences to its answer, streamed or whole."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as Many
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.calls import detached
from deployments.dispatch import Sequence
from deployments.keep_alive import KeepAlive
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
        # Asked for once: each time costs a system call.
        self._loop = asyncio.get_running_loop()
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

    def take(self) -> Gain | None:
        """Return what one choice gained next, or None if nothing more has come yet.

        Raises:
            ApiError: a sequence was turned away or failed; the whole call ends with it.
        """
        if not self._came:
            return None
        index, event = self._came.popleft()
        if not isinstance(event, tuple):
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

    @property
    def more(self) -> bool:
        """Whether there is something to take, and it is no failure."""
        return bool(self._came) and isinstance(self._came[0][1], tuple)

    async def wait(self) -> bool:
        """Wait until there is something to take; False: until ``rouse`` was called before that."""
        if not self._came:
            self._wake = self._loop.create_future()
            await self._wake
        return bool(self._came)

    def rouse(self) -> None:
        """End the wait, although nothing may have come."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def answer(self) -> bytes:
        """Return the body of an answer that is not streamed, in JSON.

        Raises:
            ApiError: see ``read``.
        """
        texts: list[list[str]] = [[] for _ in self.call.jobs]
        ends: dict[int, Finish] = {}
        while len(ends) < len(texts):
            if (came := self.take()) is None:
                await self.wait()
                continue
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
        self.rouse()


class AnswerStream:
    """The server-sent events of one call. Use ``close`` in a ``finally``.

    Args:
        choices: where they come from.
        keep_alive_s: a comment goes out when nothing else has for so long.
    """

    def __init__(self, choices: Choices, keep_alive_s: float) -> None:
        self._choices = choices
        self._wire = EventStream(choices.call, choices.fingerprint)
        self._left = len(choices.call.jobs)
        self._shows_usage = choices.call.terms.continuous_usage
        self._keep_alive = KeepAlive(keep_alive_s, choices.rouse)
        self._ready = b""

    async def begin(self) -> None:
        """Wait for the first event, but not for longer than a client should hear nothing.

        Raises:
            ApiError: the call was turned away, or failed before it gave anything.
        """
        await self._gather()

    async def pour(self, write: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Write the stream as it comes, and return what is left to write when it has ended.

        What goes wrong from here on is an event of it.
        """
        try:
            while self._left:
                # What goes together takes one system call, here and wherever it passes through.
                if self._ready and not self._choices.more:
                    data, self._ready = self._ready, b""
                    await write(data)
                await self._gather()
            end = self._wire.end(self._choices.usage)
        except ApiError as error:
            end = self._wire.fail(error)
        except Exception:
            # A bug; but a stream that just ends would be read as a success.
            fields = {"request_id": self._choices.request_id}
            logger.exception("request: its stream failed", extra=fields)
            end = self._wire.fail(internal())
        return self._ready + end

    def close(self) -> None:
        """Drop all that still runs; may be called at any time, and again."""
        self._keep_alive.close()
        self._choices.close()

    async def _gather(self) -> None:
        """Make the next event ready; or, after a long silence, a comment."""
        choices = self._choices
        while (came := choices.take()) is None:
            if not await choices.wait():
                self._ready += KEEP_ALIVE
                return
        self._keep_alive.heard()
        self._ready += await self._events(came)

    async def _events(self, came: Gain) -> bytes:
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


class ClosingStream(Response):
    """A stream that cleans up however it ends, also if it never began.

    Serve cancels what answers a client that has left.
    """

    media_type = MEDIA_TYPE

    def __init__(self, stream: AnswerStream) -> None:
        # Without a body, whose length would be told.
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            end = await self._stream.pour(write)
            await send({"type": "http.response.body", "body": end, "more_body": False})
        finally:
            self._stream.close()

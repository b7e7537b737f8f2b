"""Client: sends one request and tells what came of it."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from experiments.loads.load import Arrival
from experiments.replay.broken import broken
from experiments.replay.clock import Clock
from experiments.replay.refusal import Refusal, refusal
from experiments.replay.retry import Retry
from experiments.replay.stream import Stream
from experiments.replay.target import COMPLETIONS, Target
from experiments.simulator.outcome import Outcome

_LONGEST_ERROR: Final = 64 * 1024
_NO_HEADERS: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class Tally:
    """What the client saw of all requests together.

    Attributes:
        lateness_s: of each request: seconds from when it was to be sent until it was.
        retries: requests sent again.
        short: answers that had fewer tokens than were asked for.
        uncounted: answers whose tokens the server did not count; their events were.
        prompt_tokens: of answered requests, as the server counts; 0 if it does not.
        asked_tokens: of the same requests' prompts, as in the load.
        examples: for each reason of a failure, what was said the first time.
        under_way: requests that have neither ended nor wait to be sent again.
        ended: requests by status.
    """

    lateness_s: list[float] = field(default_factory=list)
    retries: int = 0
    short: int = 0
    uncounted: int = 0
    prompt_tokens: int = 0
    asked_tokens: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    under_way: int = 0
    ended: Counter[str] = field(default_factory=Counter)


class _Failure(Exception):
    """An attempt that brought no answer.

    Args:
        refusal: why.
        again: sending it again may help.
        status: of the answer; None if there was none.
        headers: of the answer.
    """

    def __init__(
        self,
        refusal: Refusal,
        *,
        again: bool,
        status: int | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.again = again
        self.status = status
        self.headers = headers


class Client:
    """Sends requests to one server.

    Args:
        session: with no limit of connections of its own.
        target: the server.
        clock: of the load.
        retry: when to send again.
        timeout_s: until an answer, its retries included, has to be complete.
        connections: at most so many at a time.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        clock: Clock,
        retry: Retry,
        timeout_s: float,
        connections: int,
    ) -> None:
        self.tally = Tally()
        self._session = session
        self._target = target
        self._url = target.url / COMPLETIONS
        self._clock = clock
        self._retry = retry
        self._timeout_s = timeout_s
        self._connections = connections

    async def send(self, index: int, arrival: Arrival, body: bytes) -> Outcome:
        """Send a request and read its answer to the end.

        Whatever happens, there is an outcome; if this is cancelled, that of an interrupted one.
        """
        self.tally.lateness_s.append(self._clock.now() - arrival.at)
        outcome = Outcome(
            index, arrival.at, arrival.priority, arrival.tenant, arrival.prompt_tokens
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._with_retries(outcome, arrival, body)
        except TimeoutError:
            # While it waits to be sent again, it has a reason already.
            if not outcome.reason:
                self._failed(outcome, Refusal("client timeout", f"after {self._timeout_s:g} s"))
        except asyncio.CancelledError:
            self._failed(outcome, Refusal("interrupted"))
        self.tally.ended[outcome.status] += 1
        return outcome

    async def _with_retries(self, outcome: Outcome, arrival: Arrival, body: bytes) -> None:
        tried = 0
        while True:
            tried += 1
            try:
                await self._attempt(outcome, arrival, body)
                return
            except _Failure as failure:
                self._failed(outcome, failure.refusal)
                # What has begun to answer is not asked again: there would be two answers.
                again = failure.again and outcome.first_token_at is None
                wait = self._retry.wait_s(tried, failure.status, failure.headers)
                if not again or wait is None:
                    return
            await self._clock.until(self._clock.now() + wait)
            outcome.status, outcome.reason = "failed", ""
            self.tally.retries += 1

    def _failed(self, outcome: Outcome, refusal: Refusal) -> None:
        away = refusal.turned_away and outcome.first_token_at is None
        outcome.status = "refused" if away else "failed"
        outcome.reason = refusal.reason
        self.tally.examples.setdefault(refusal.reason, refusal.message)

    async def _attempt(self, outcome: Outcome, arrival: Arrival, body: bytes) -> None:
        """Send it once.

        Raises:
            _Failure: there is no whole answer.
        """
        if self.tally.under_way >= self._connections:
            message = f"all {self._connections} connections were in use (--max-connections)"
            raise _Failure(Refusal("no free connection", message), again=False)
        headers = self._target.headers(arrival.tenant)
        stream = Stream()
        self.tally.under_way += 1
        try:
            async with self._request(body, headers) as answer:
                if answer.status != 200:
                    said = refusal(await _said(answer), answer.status)
                    raise _Failure(said, again=True, status=answer.status, headers=answer.headers)
                async for data in answer.content.iter_any():
                    stream.feed(data, self._clock.now())
                stream.close(self._clock.now())
        except (aiohttp.ClientError, OSError) as error:
            # What comes after the end of an answer is of no interest.
            if not stream.done:
                raise _Failure(broken(error), again=True) from None
        finally:
            self.tally.under_way -= 1
            _enter(outcome, stream)
        self._judge(outcome, arrival, stream)

    def _request(self, body: bytes, headers: Mapping[str, str]) -> Any:
        # Elsewhere the request could be repeated as a GET, and timed twice.
        return self._session.post(self._url, data=body, headers=headers, allow_redirects=False)

    def _judge(self, outcome: Outcome, arrival: Arrival, stream: Stream) -> None:
        if stream.error is not None:
            raise _Failure(stream.error, again=False)
        if not stream.done:
            raise _Failure(Refusal("stream cut", "it ended without [DONE]"), again=True)
        if stream.last_at is None:
            raise _Failure(Refusal("empty answer", "it has no token"), again=False)
        outcome.status = "ok"
        if stream.output_tokens is None:
            self.tally.uncounted += 1
        if outcome.output_tokens < arrival.output_tokens:
            self.tally.short += 1
        if stream.prompt_tokens is not None:
            self.tally.prompt_tokens += stream.prompt_tokens
            self.tally.asked_tokens += arrival.prompt_tokens


def _enter(outcome: Outcome, stream: Stream) -> None:
    outcome.first_token_at = stream.first_at
    outcome.last_token_at = stream.last_at
    outcome.longest_gap_s = stream.longest_gap_s
    outcome.output_tokens = stream.events if stream.output_tokens is None else stream.output_tokens
    outcome.cached_tokens = stream.cached_tokens or 0


async def _said(answer: aiohttp.ClientResponse) -> Any:
    """Return the body of an error: JSON, or the text that it is instead."""
    came = b""
    async for data in answer.content.iter_any():
        came += data
        if len(came) > _LONGEST_ERROR:
            break
    text = came.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text

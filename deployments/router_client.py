"""A gateway's side of the Router."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ray.serve.handle import DeploymentHandle

from deployments.calls import Gone, answer_of, detached
from deployments.messages import Refusal, RefusalKind, ReplicaInfo, Word, unavailable
from deployments.metrics import Counts
from deployments.router_line import RouterLine
from router.ticket import Ticket

ROUTER_RETRY_S = 0.1
LOOK_S = 1.0
ANSWER_S = 5.0

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RouterClient:
    """Asks the Router, and waits for one that is being restarted.

    Args:
        handle: of the Router.
        gateway: this process's name.
        rng: spreads the times after which clients are to come back.
        hold_s: how long requests wait for a router, in seconds.
        max_held: how many new ones may at once, >= 1; others are refused at once.
        on_word: called with what the router says of replicas by itself.
    """

    def __init__(
        self,
        handle: DeploymentHandle,
        gateway: str,
        rng: random.Random,
        hold_s: float,
        max_held: int,
        on_word: Callable[[Word], None],
    ) -> None:
        plain = handle.options(request_serialization="pickle", response_serialization="pickle")
        self._gateway = gateway
        self._rng = rng
        self._hold_s = hold_s
        self._max_held = max_held
        self._held = 0
        self._on_word = on_word
        self._down_since: float | None = time.monotonic()
        self._handle = plain
        self._line = RouterLine(plain)
        self._lost = plain.options(method_name="lost")
        self._remember = plain.options(method_name="remember")
        self._session = plain.options(method_name="session", stream=True)
        self._live: dict[str, Ticket] = {}
        self._met = False
        self._released: dict[str, bool] = {}
        self._slow: set[str] = set()
        self._telling: asyncio.Task[None] | None = None

    async def place(self, ticket: Ticket, *, bounced: bool) -> str | Refusal:
        """Return the replica to go to, or why there is none; cancelling gives the ticket up.

        While there is no router, a new ticket is held or refused at once, and one that is held
        has its place: a new router's "full" would come when its stream has long begun.
        """
        asked = time.monotonic()

        def question(again: bool) -> Any:
            self._note_way([ticket])
            if bounced and not again:
                return self._line.call("bounced", self._gateway, ticket)
            return self._line.call(
                "acquire", self._gateway, _again(ticket, asked) if again else ticket
            )

        self._live[ticket.id] = ticket
        if self._down_since is None or ticket.again or bounced:
            return await self._ask(question)
        return await self._hold(1, question)

    async def admit(self, tickets: Sequence[Ticket]) -> Refusal | None:
        """Let in tickets that belong together, all of them or, with a refusal, none.

        Each is then to be placed, with ``again``. Whoever is refused, or cancels this, has all
        of them to release. While there is no router, they are held or refused together.
        """
        asked = time.monotonic()

        def question(again: bool) -> Any:
            self._note_way(tickets)
            mine = [_again(one, asked) for one in tickets] if again else list(tickets)
            return self._line.call("admit", self._gateway, mine)

        self._live |= {ticket.id: ticket for ticket in tickets}
        if self._down_since is None:
            return await self._ask(question)
        return await self._hold(len(tickets), question)

    def _note_way(self, tickets: Sequence[Ticket]) -> None:
        """Note which way tickets are asked for: their release must not overtake that."""
        if not self._line.direct:
            self._slow |= {ticket.id for ticket in tickets}

    async def _hold(self, count: int, question: Callable[[bool], Any]) -> Any:
        """Ask a router that is away for as many new requests, unless too many do already.

        More than can be held are not "too many for now": only a router can say when there is room.
        """
        if count > self._max_held:
            return self.nobody()
        if self._held + count > self._max_held:
            return replace(
                self.nobody(), kind=RefusalKind.BUSY, current=self._held, limit=self._max_held
            )
        self._held += count
        try:
            return await self._ask(lambda _: question(True))
        finally:
            self._held -= count

    async def _ask(self, question: Callable[[bool], Any]) -> Any:
        """Ask until a router answers, but not for longer than one is waited for.

        Args:
            question: makes the call; told whether it was made before, and its tickets so have
                places already.
        """
        asked, again = time.monotonic(), False
        while not self._given_up(asked):
            response = question(again)
            try:
                answer = await self._while_up(answer_of(response), asked)
                if not _abandoned(answer):
                    return answer
            except asyncio.CancelledError:
                response.cancel()
                raise
            except Gone:
                response.cancel()
            await asyncio.sleep(ROUTER_RETRY_S)
            again = True
        return self.nobody()

    def _given_up(self, asked: float) -> bool:
        """Whether there has been no router for as long as a request of then is held."""
        if self._down_since is None:
            return False
        return time.monotonic() - max(self._down_since, asked) > self._hold_s

    async def _while_up(self, answer: Awaitable[T], asked: float) -> T:
        """Wait for an answer, but not for a router that does not come back.

        A call to a deployment without a process waits for ever; waiting in the queue of a
        router that lives may take as long as it likes.

        Raises:
            Gone: there is no router, or it died.
        """
        task = asyncio.ensure_future(answer)
        try:
            while True:
                done, _ = await asyncio.wait([task], timeout=LOOK_S)
                if done:
                    return await task
                if self._given_up(asked):
                    raise Gone("there is no router")
        finally:
            task.cancel()

    def nobody(self) -> Refusal:
        """Return what to say when nobody serves."""
        return unavailable(self._rng)

    def release(self, ticket: str, *, finished: bool) -> None:
        """Give up a ticket, soon; several go in one message."""
        self._live.pop(ticket, None)
        self._released[ticket] = finished
        self._tell_soon()

    async def lost(self, replica: str, *, certain: bool) -> None:
        """Say that a replica cannot be reached, or is certain to be dead."""
        call: Any = self._lost.remote(replica, certain=certain)
        with contextlib.suppress(Gone):
            await answer_of(call)

    async def describe(self) -> ReplicaInfo | Refusal:
        """Return what the replicas are, as soon as there is one."""
        call: Any = self._handle.describe.remote()
        try:
            answer: ReplicaInfo | Refusal = await self._while_up(answer_of(call), time.monotonic())
        except Gone:
            return self.nobody()
        return answer

    async def known(self) -> ReplicaInfo | None:
        """Return what the replicas are, if there is one now and the router says so in time."""
        call: Any = self._handle.known.remote()
        with contextlib.suppress(Gone):
            answer: ReplicaInfo | None = await _soon(call)
            return answer
        return None

    async def healthy(self) -> bool:
        """Whether a replica makes progress."""
        call: Any = self._handle.healthy.remote()
        with contextlib.suppress(Gone, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return bool(await answer_of(call))
        return False

    async def count(self, counts: Counts) -> None:
        """Hand over what was counted.

        Raises:
            Gone: there is no router.
        """
        call: Any = self._line.call("count", counts)
        await answer_of(call)

    async def metrics(self, model: str) -> str:
        """Return the Prometheus page.

        Raises:
            Gone: there is no router, or it does not answer.
        """
        call: Any = self._handle.metrics.remote(model)
        return str(await _soon(call))

    async def load(self, model: str) -> dict[str, Any]:
        """Return queue and blocks of each replica.

        Raises:
            Gone: there is no router, or it does not answer.
        """
        call: Any = self._handle.load.remote(model)
        answer: dict[str, Any] = await _soon(call)
        return answer

    async def keep_lane(self) -> None:
        """Have what is asked most often go over a lane, for ever."""
        await self._line.keep()

    async def keep_session(self) -> None:
        """Hold a stream to the router open for ever, so that it notices when this process dies."""
        while True:
            try:
                await answer_of(self._one_session())
            except Exception as error:
                logger.info("the session with the router ended: %s", error)
            await asyncio.sleep(ROUTER_RETRY_S)

    async def _one_session(self) -> None:
        session: Any = self._session.remote(self._gateway)
        try:
            async for word in session:
                if self._down_since is not None and self._live:
                    self._met = True
                    self._tell_soon()
                self._down_since = None
                self._on_word(word)
        finally:
            if self._down_since is None:
                self._down_since = time.monotonic()

    def _tell_soon(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = detached(self._tell())

    async def _tell(self) -> None:
        """Say which tickets are held and which were given up, one message after the other.

        So none that was given up is among those that a later message says are held.
        """
        while self._met or self._released:
            met, self._met = self._met, False
            released: dict[str, bool] = {}
            if met:
                call: Any = self._remember.remote(self._gateway, list(self._live.values()))
            else:
                released, call = self._release_some()
            try:
                await answer_of(call)
                self._slow -= released.keys()
            except Gone:
                # It may be the connection that failed, and the router know the tickets still; a
                # new router passes them over. A ticket is never used again after its release.
                self._met |= met
                self._released = released | self._released
                await asyncio.sleep(ROUTER_RETRY_S)

    def _release_some(self) -> tuple[dict[str, bool], Any]:
        """Release those that were asked for through Serve, if any, and all others otherwise."""
        released, self._released = self._released, {}
        slow = {ticket: how for ticket, how in released.items() if ticket in self._slow}
        if not slow:
            return released, self._line.call("release", released)
        self._released = {ticket: how for ticket, how in released.items() if ticket not in slow}
        return slow, self._line.through_serve("release", slow)


def _again(ticket: Ticket, asked: float) -> Ticket:
    """The ticket as it is asked for once more: its time to start runs since ``asked``."""
    within = ticket.start_within_s
    if within is not None:
        within = max(0.0, within - (time.monotonic() - asked))
    return replace(ticket, again=True, start_within_s=within)


async def _soon(call: Any) -> Any:
    """Return what a call gives.

    Raises:
        Gone: it gives nothing in time.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer_of(call)
    except TimeoutError:
        raise Gone(f"no answer in {ANSWER_S:g} s") from None


def _abandoned(answer: object) -> bool:
    """Whether the router gave the ticket up by itself: it had lost sight of this process."""
    return isinstance(answer, Refusal) and answer.kind is RefusalKind.ABANDONED

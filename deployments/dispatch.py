"""One sequence on its way: placed, submitted, streamed, and placed again if a replica dies.

The two rules that everything here serves: whatever happens, a ticket is given up exactly
once; and what a client has been sent is never taken back or repeated. What has a time limit is
given up when that has come, wherever it is then.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from deployments.attempt import Attempt
from deployments.calls import detached
from deployments.channel import Channel, Listener, ReplicaLost
from deployments.messages import Event, Refusal, RefusalKind, ReplicaInfo
from deployments.metrics import Counts
from deployments.order import END, Failed, Order, Refused
from deployments.patience import MAX_LOSSES, Patience
from deployments.router_client import RouterClient
from deployments.tally import Tally
from deployments.timeline import UNTOLD, Timeline
from engine.submission import EXPIRED, Detail
from router.ticket import Ticket

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0

# What no client can do anything about.
_NOT_FOR_CLIENTS = frozenset({RefusalKind.ABANDONED, RefusalKind.NO_STREAM, RefusalKind.OTHER})


class Sequence:
    """An order being carried out: `start` it, and cancel its task to drop it.

    Those that belong together are let in together before they start, see `deployments.group`.

    Invariant: at most one attempt lives; every attempt is given up exactly once.

    Args:
        order: what to do.
        info: of any replica; all have the same block size.
        router, channel: the ways out of this process.
        counts: where to count.
        hold_s: how long replicas may be out of reach, one after the other, before it is refused.
        emit: called with each event; the last one has a finish reason, or is an error.
        timeline: hears of its turns.
    """

    def __init__(
        self,
        order: Order,
        info: ReplicaInfo,
        router: RouterClient,
        channel: Channel,
        counts: Counts,
        hold_s: float,
        emit: Callable[[Event | Refused | Failed], None],
        timeline: Timeline = UNTOLD,
    ) -> None:
        self._order = order
        self._info = info
        self._router = router
        self._channel = channel
        self._tally = Tally(order, counts, timeline)
        self._timer = asyncio.timeout(None)
        self._patience = Patience(hold_s)
        self._emit = emit
        self._losses = 0
        self._finished = False
        self._generated: list[int] = []
        self._call = order.key
        self._fields = {"request_id": order.request_id}  # of every log line
        self._attempts = 0
        self._attempt: Attempt | None = None

    @property
    def key(self) -> str:
        """Its name in the whole deployment."""
        return self._order.key

    @property
    def left_s(self) -> float | None:
        """Seconds until it is given up, None for never."""
        return self._order.left_s(bool(self._generated))

    def ticket(self, call: str) -> Ticket:
        """Return the ticket that is to be let in with others, before `start`.

        From then on it is this sequence's to give up.

        Args:
            call: names all of them together.
        """
        self._call = call
        return self._begin().ticket

    def admitted(self) -> None:
        """The ticket was let in: whatever becomes of the router, it has its place."""
        if (attempt := self._attempt) is not None:
            attempt.ticket = replace(attempt.ticket, again=True)

    def turned_away(self, refusal: Refusal) -> Refused | Failed:
        """The ticket was not let in; returns what to tell the client."""
        error = self._refused(refusal)
        if isinstance(error, Refused) and refusal.kind is RefusalKind.EXPIRED:
            self._tally.expired(error.refusal.message)
        self.drop()
        return error

    def drop(self) -> None:
        """Give up what it holds, if it was never started or has ended."""
        self._tally.aborted()
        self._give_up(finished=False)

    def start(self) -> "asyncio.Task[None]":
        """Carry the order out in a task of its own, outside of the current request's context."""
        task = detached(self.run())
        # A task that is cancelled before its first step has no ``finally`` to run.
        task.add_done_callback(lambda _: self.drop())
        return task

    async def run(self) -> None:
        """Carry the order out, on as many replicas as it takes."""
        try:
            async with self._timer:
                self._wind()
                await self._carry_out()
        except asyncio.CancelledError:
            self._tally.aborted()
            raise
        except Refused as error:
            self._turn_away(error)
        except Failed as error:
            self._fail(error)
        except Exception as error:
            if not self._timer.expired():
                logger.exception("request: a bug", extra=self._fields)
                self._fail(Failed(repr(error)))
            elif not self._finished:
                self._turn_away(self._expired())
        finally:
            self._give_up(finished=False)

    async def _carry_out(self) -> None:
        while True:
            try:
                attempt = await self._place()
                await attempt.ended
                return
            except ReplicaLost as lost:
                await self._bear(lost)

    def _wind(self) -> None:
        """Set the timer to the limit that holds now."""
        if self._timer.expired():
            return
        left_s = self.left_s
        now = asyncio.get_running_loop().time()
        self._timer.reschedule(None if left_s is None else now + left_s)

    def _expired(self) -> Refused:
        deadline = self._order.deadline(bool(self._generated))
        limit = END if deadline is None else deadline[1]
        return Refused(Refusal(RefusalKind.EXPIRED, message=limit))

    async def _place(self) -> Attempt:
        """Find a replica that takes the request."""
        bounced = False
        while True:
            left_s = self.left_s
            if left_s is not None and left_s <= 0:
                raise self._expired()
            attempt = self._attempt or self._begin()
            ticket = replace(attempt.ticket, start_within_s=left_s)
            replica = await self._router.place(ticket, bounced=bounced)
            if isinstance(replica, Refusal):
                if not self._may_ask_again(replica):
                    raise self._refused(replica)
                await asyncio.sleep(_PAUSE_S)
                bounced = False
                continue
            if await self._submit(attempt, replica):
                attempt.taken = True
                self._patience.found()
                self._tally.taken()
                return attempt
            bounced = True

    async def _submit(self, attempt: Attempt, replica: str) -> bool:
        """Ask the replica to take the request; False: it has no room after all.

        Raises:
            Refused: it can never take it.
            ReplicaLost: it is gone.
        """
        link = await self._channel.connect(replica)
        if self._generated and link.info.fingerprint != self._info.fingerprint:
            raise Failed(f"replica {replica} computes with other numerics")
        self._info = link.info
        key = attempt.ticket.id
        link.listen(key, self._listener(attempt))
        submission = self._order.submission(key, tuple(self._generated))
        # Not cancelled with the client: only when it has been answered is it known whether
        # there is something to abort.
        attempt.link, attempt.submitting = (
            link,
            detached(link.submit(submission, self.left_s, self._order.traceparent)),
        )
        # A replica that hangs never answers; others notice, and then the attempt has ended.
        await asyncio.wait((attempt.submitting, attempt.ended), return_when=asyncio.FIRST_COMPLETED)
        if not attempt.submitting.done():
            await attempt.ended
            return True
        refusal = attempt.submitting.result()
        if refusal is None:
            return True
        if attempt.ended.done():
            await attempt.ended  # the replica was lost after it had answered
        link.forget(key)
        attempt.link = attempt.submitting = None
        if refusal.kind is RefusalKind.QUEUE_FULL:
            return False
        raise self._refused(refusal)

    def _listener(self, attempt: Attempt) -> Listener:
        def listen(event: Event | ReplicaLost) -> None:
            if attempt.ended.done():
                return
            if isinstance(event, ReplicaLost):
                attempt.ended.set_exception(event)
                return
            _, tokens, _, finish, error, detail = event
            if error is not None:
                attempt.ended.set_exception(self._expired() if error == EXPIRED else Failed(error))
                return
            self._note(tokens, finish, detail)
            self._emit(event)
            if finish is not None:
                attempt.ended.set_result(None)

        return listen

    async def _bear(self, lost: ReplicaLost) -> None:
        """Make ready to go on elsewhere, from the tokens so far.

        Raises:
            Failed: too many replicas died under it.
            Refused: no replica can be reached.
        """
        taken = self._attempt is not None and self._attempt.taken
        self._give_up(finished=False)
        self._patience.lost()
        if not taken:  # it could not be reached, so the router is asked again, in a moment
            if self._patience.over:
                raise self._refused(self._router.nobody())
            await asyncio.sleep(self._patience.pause_s())
            return
        self._losses += not lost.left
        if self._losses > MAX_LOSSES:
            raise Failed(str(lost)) from lost
        reason = "drained" if lost.left else "lost"
        self._tally.resumed(reason)
        logger.warning("request goes on elsewhere: %s", lost, extra=self._fields)

    def _may_ask_again(self, refusal: Refusal) -> bool:
        """Whether a replica that it can go on with may come yet, though others serve."""
        if refusal.kind is not RefusalKind.NO_REPLICA or not self._generated:
            return False
        return not self._patience.over

    def _turn_away(self, error: Refused) -> None:
        if error.refusal.kind is RefusalKind.EXPIRED:
            self._tally.expired(error.refusal.message)
        self._emit(error)

    def _fail(self, error: Failed) -> None:
        logger.error("request failed: %s", error, extra=self._fields)
        self._tally.failed()
        self._emit(error)

    def _give_up(self, *, finished: bool) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.give_up(self._router, finished=finished)

    def _begin(self) -> Attempt:
        again = self._attempts > 0
        # A new name for each life: a late report about an earlier one means nothing then.
        key = f"{self.key}.{self._attempts}" if again else self.key
        self._attempts += 1
        ticket = self._order.ticket(key, self._call, self._info, self._generated, again)
        self._attempt = Attempt(ticket, asyncio.get_running_loop().create_future())
        return self._attempt

    def _refused(self, refusal: Refusal) -> Refused | Failed:
        if refusal.kind is RefusalKind.EXPIRED:
            return self._expired()
        self._tally.refused(refusal.kind)
        if refusal.kind is RefusalKind.NO_REPLICA:
            return Refused(refusal)
        if self._generated:
            return Failed(f"cannot go on: {refusal.kind.value}")
        if refusal.kind in _NOT_FOR_CLIENTS:
            return Failed(f"refused: {refusal}")
        return Refused(refusal)

    def _note(self, tokens: tuple[int, ...], finish: str | None, detail: Detail | None) -> None:
        first = bool(tokens) and not self._generated
        self._generated += tokens
        self._tally.event(tokens, finish, detail)
        if first:
            self._wind()
        if finish is not None:
            self._finished = True
            self._give_up(finished=True)

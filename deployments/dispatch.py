"""One sequence on its way: placed, submitted, streamed, and placed again if a replica dies.

The two rules that everything here serves: whatever happens, a ticket is given up exactly
once; and what a client has been sent is never taken back or repeated.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.calls import detached
from deployments.channel import Channel, Link, Listener, ReplicaLost
from deployments.messages import Event, Refusal, RefusalKind, ReplicaInfo
from deployments.metrics import Counts, priority_class
from deployments.order import Failed, Order, Refused
from deployments.router_client import RouterClient
from engine.submission import Submission
from router.ticket import Ticket

logger = logging.getLogger(__name__)

MAX_LOSSES = 3
"""Replicas that may die under one request before it is given up: it may be what kills them."""

_LONGEST_PAUSE_S = 1.0

# What no client can do anything about.
_NOT_FOR_CLIENTS = frozenset({RefusalKind.ABANDONED, RefusalKind.NO_STREAM, RefusalKind.OTHER})


@dataclass(slots=True)
class _Attempt:
    """One life of a sequence: a ticket, and what it led to.

    Attributes:
        ticket: held at the router from the first ``place`` on.
        ended: done when the replica has sent the last event, or is lost.
        link: to the replica that was asked to take the request.
        submitting: the asking.
        taken: the replica took it.
    """

    ticket: Ticket
    ended: "asyncio.Future[None]"
    taken: bool = False
    link: Link | None = None
    submitting: "asyncio.Task[Refusal | None] | None" = None


class Sequence:
    """An order being carried out: run it in a task of its own, cancel the task to drop it.

    Invariant: at most one attempt lives; every attempt is given up exactly once.

    Args:
        order: what to do.
        info: of any replica; all have the same block size.
        router, channel: the ways out of this process.
        counts: where to count.
        hold_s: how long replicas may be out of reach, one after the other, before it is refused.
        emit: called with each event; the last one has a finish reason, or is an error.
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
    ) -> None:
        self._order = order
        self._info = info
        self._router = router
        self._channel = channel
        self._counts = counts
        self._hold_s = hold_s
        self._emit = emit
        self._losses = 0
        self._misses = 0
        self._missing_since: float | None = None
        self._moved = order.began
        self._was_taken = False
        self._finished = False
        self._generated: list[int] = []
        self._attempts = 0
        self._attempt: _Attempt | None = None

    async def run(self) -> None:
        """Carry the order out, on as many replicas as it takes."""
        try:
            while True:
                try:
                    attempt = await self._place()
                    await attempt.ended
                    return
                except ReplicaLost as lost:
                    await self._bear(lost)
        except asyncio.CancelledError:
            if not self._finished:  # else it has just ended by itself
                self._counts.add("request_success_total", 1, (("finished_reason", "abort"),))
            raise
        except Refused as error:
            self._emit(error)
        except Failed as error:
            self._fail(error)
        except Exception as error:
            logger.exception("request %s: a bug", self._order.request_id)
            self._fail(Failed(repr(error)))
        finally:
            self._give_up(finished=False)

    async def _place(self) -> _Attempt:
        """Find a replica that takes the request."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        attempt = self._attempt = _Attempt(self._ticket(), ended)
        bounced = False
        while True:
            replica = await self._router.place(attempt.ticket, bounced=bounced)
            if isinstance(replica, Refusal):
                if not self._may_ask_again(replica):
                    raise self._refused(replica)
                await asyncio.sleep(_LONGEST_PAUSE_S)
                bounced = False
                continue
            if await self._submit(attempt, replica):
                attempt.taken = True
                self._taken()
                return attempt
            bounced = True

    async def _submit(self, attempt: _Attempt, replica: str) -> bool:
        """Ask the replica to take the request; False: it has no room after all.

        Raises:
            Refused: it can never take it.
            ReplicaLost: it is gone.
        """
        link = await self._channel.connect(replica)
        if self._generated and link.info.fingerprint != self._info.fingerprint:
            raise Failed(f"replica {replica} computes with other numerics")
        self._info = link.info
        key, order = attempt.ticket.id, self._order
        link.listen(key, self._listener(attempt))
        generated = tuple(self._generated)
        submission = Submission(
            key, order.prompt, order.params, order.priority, order.arrival, generated
        )
        # Not cancelled with the client: only when it has been answered is it known whether
        # there is something to abort.
        attempt.link, attempt.submitting = link, detached(link.submit(submission))
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

    def _listener(self, attempt: _Attempt) -> Listener:
        def listen(event: Event | ReplicaLost) -> None:
            if attempt.ended.done():
                return
            if isinstance(event, ReplicaLost):
                attempt.ended.set_exception(event)
                return
            _, tokens, _, finish, error, _ = event
            if error is not None:
                attempt.ended.set_exception(Failed(error))
                return
            self._note(tokens, finish)
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
        if self._missing_since is None:
            self._missing_since = time.monotonic()
        if not taken:
            await self._miss()
            return
        self._losses += not lost.left
        if self._losses > MAX_LOSSES:
            raise Failed(str(lost)) from lost
        reason = "drained" if lost.left else "lost"
        self._counts.add("request_resumed_total", 1, (("reason", reason),))
        logger.warning("request %s goes on elsewhere: %s", self._order.request_id, lost)

    def _may_ask_again(self, refusal: Refusal) -> bool:
        """Whether a replica that it can go on with may come yet, though others serve."""
        if refusal.kind is not RefusalKind.NO_REPLICA or not self._generated:
            return False
        return not self._was_held()

    def _was_held(self) -> bool:
        """Whether it has been without a replica for as long as requests are held."""
        since = self._missing_since
        return since is not None and time.monotonic() - since > self._hold_s

    async def _miss(self) -> None:
        """A replica could not be reached, so the router is asked again, in a moment."""
        if self._was_held():
            raise self._refused(self._router.nobody())
        pause = min(0.01 * (2**self._misses - 1), _LONGEST_PAUSE_S)
        self._misses += 1
        await asyncio.sleep(pause)

    def _fail(self, error: Failed) -> None:
        logger.error("request %s failed: %s", self._order.request_id, error)
        self._counts.add("request_errors_total")
        self._emit(error)

    def _give_up(self, *, finished: bool) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        key = attempt.ticket.id
        if attempt.link is not None:
            attempt.link.forget(key)
        if attempt.ended.done() and not attempt.ended.cancelled():
            attempt.ended.exception()  # it may be that nobody waited for it yet
        if attempt.link is None or attempt.submitting is None or finished:
            self._router.release(key, finished=finished)
        else:
            detached(_withdraw(attempt.link, attempt.submitting, key, self._router))

    def _ticket(self) -> Ticket:
        order, block = self._order, self._info.block_tokens
        again = self._attempts > 0
        # A new name for each life: a late report about an earlier one means nothing then.
        key = f"{order.key}.{self._attempts}" if again else order.key
        self._attempts += 1
        now = len(order.prompt) + len(self._generated)
        most = min(len(order.prompt) + order.params.max_tokens, self._info.max_model_len)
        blocks_now = -(-now // block)
        blocks_max = max(-(-most // block), blocks_now)
        # What has begun goes on only where the same bits come out.
        kind = self._info.fingerprint if self._generated else ""
        return Ticket(key, order.priority, order.arrival, blocks_now, blocks_max, again, kind)

    def _refused(self, refusal: Refusal) -> Refused | Failed:
        self._counts.add("admission_rejections_total", 1, (("reason", refusal.kind.value),))
        if refusal.kind is RefusalKind.NO_REPLICA:
            return Refused(refusal)
        if self._generated:
            return Failed(f"cannot go on: {refusal.kind.value}")
        if refusal.kind in _NOT_FOR_CLIENTS:
            return Failed(f"refused: {refusal}")
        return Refused(refusal)

    def _taken(self) -> None:
        self._misses, self._missing_since = 0, None
        # Once, in whichever life; the first token may have come before this.
        if self._was_taken:
            return
        self._was_taken = True
        order = self._order
        waited, labels = time.monotonic() - order.began, priority_class(order.priority)
        self._counts.observe("request_queue_time_seconds", waited, labels)
        self._counts.add("prompt_tokens_total", len(order.prompt))

    def _note(self, tokens: tuple[int, ...], finish: str | None) -> None:
        now = time.monotonic()
        if tokens:
            if self._generated:
                each = (now - self._moved) / len(tokens)
                self._counts.observe("inter_token_latency_seconds", each, times=len(tokens))
            else:
                self._counts.observe("time_to_first_token_seconds", now - self._order.began)
            self._moved = now
            self._generated += tokens
        if finish is not None:
            self._finished = True
            self._counts.add("request_success_total", 1, (("finished_reason", finish),))
            self._counts.add("generation_tokens_total", len(self._generated))
            self._counts.observe("e2e_request_latency_seconds", now - self._order.began)
            self._give_up(finished=True)


async def _withdraw(
    link: Link, submitting: "asyncio.Task[Refusal | None]", key: str, router: RouterClient
) -> None:
    """Abort a request that may still be on its way to the replica, then give its ticket up."""
    try:
        if await submitting is None:
            await link.abort((key,))
    except ReplicaLost:
        pass  # and with it the request
    finally:
        router.release(key, finished=False)

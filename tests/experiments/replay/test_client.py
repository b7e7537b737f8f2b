"""What becomes of one request, whatever a server does."""

import asyncio
import random
from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from deployments.launch import free_ports
from experiments.loads.load import Arrival
from experiments.replay.client import Client
from experiments.replay.retry import Retry
from experiments.replay.target import Target
from experiments.simulator.outcome import Outcome
from tests.experiments.replay.scripted import Exchange, HandClock, Scripted

ARRIVAL = Arrival(at=1.0, prompt_tokens=5, output_tokens=3, priority=2, tenant="search")
BODY = b'{"prompt": [1, 2, 3, 4, 5], "max_tokens": 3}'


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted().running() as server:
        yield server


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Sending:
    """A client that sends one request to a server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: URL,
        *,
        retries: int = 0,
        timeout_s: float = 30.0,
        connections: int = 9,
    ) -> None:
        self.clock = HandClock()
        target = Target(url, "m", "sk-all", {"search": "sk-search"})
        retry = Retry(retries, random.Random(0))
        self.client = Client(session, target, self.clock, retry, timeout_s, connections)
        self.task = asyncio.create_task(self.client.send(7, ARRIVAL, BODY))

    async def at(self, now: float, exchange: Exchange) -> None:
        """A token comes at this time, and the client has it."""
        await self.clock.move(now)
        reads = self.clock.reads
        await exchange.token()
        while self.clock.reads == reads:
            await asyncio.sleep(0)

    async def waits(self) -> None:
        """Return once it waits to send again."""
        while not self.clock.waited_for:
            await asyncio.sleep(0)

    async def outcome(self) -> Outcome:
        return await asyncio.wait_for(self.task, 30)


async def begun(server: Scripted, session: aiohttp.ClientSession) -> tuple[Sending, Exchange]:
    """A request whose answer has begun, without a token yet."""
    sending = Sending(session, server.url)
    exchange = await server.exchange(0)
    await exchange.begin()
    return sending, exchange


async def test_an_answer_has_the_servers_counts_and_the_clients_times(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending, exchange = await begun(server, session)
    for now in (2.0, 2.5, 4.0):
        await sending.at(now, exchange)
    await exchange.finish(prompt=6, output=3, cached=2)
    outcome = await sending.outcome()
    assert outcome == Outcome(
        *(7, 1.0, 2, "search", 5),
        output_tokens=3,
        status="ok",
        first_token_at=2.0,
        last_token_at=4.0,
        cached_tokens=2,
        longest_gap_s=1.5,
    )
    tally = sending.client.tally
    assert (tally.ended["ok"], tally.short, tally.uncounted, tally.under_way) == (1, 0, 0, 0)
    assert (tally.prompt_tokens, tally.asked_tokens) == (6, 5)


async def test_a_tenants_requests_have_its_key(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending = Sending(session, server.url)
    exchange = await server.exchange(0)
    assert exchange.headers["authorization"] == "Bearer sk-search"
    assert exchange.body == {"prompt": [1, 2, 3, 4, 5], "max_tokens": 3}
    await exchange.whole()
    assert (await sending.outcome()).status == "ok"


async def test_an_answer_shorter_than_asked_for_is_noticed(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending, exchange = await begun(server, session)
    await exchange.token()
    await exchange.finish(prompt=5, output=1)
    assert (await sending.outcome()).output_tokens == 1
    assert sending.client.tally.short == 1


async def test_without_a_count_events_are_counted(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending, exchange = await begun(server, session)
    for _ in range(3):
        await exchange.token()
    await exchange.event("[DONE]")
    await exchange.end()
    outcome = await sending.outcome()
    assert (outcome.status, outcome.output_tokens) == ("ok", 3)
    assert sending.client.tally.uncounted == 1


@pytest.mark.parametrize(
    ("status", "reason", "came"),
    [
        (429, "rate_limit_error/queue_full", "refused"),
        (503, "service_unavailable_error/no_replica", "refused"),
        (504, "timeout_error/deadline_exceeded", "refused"),
        (400, "invalid_request_error/context_length_exceeded", "failed"),
        (401, "invalid_request_error/invalid_api_key", "failed"),
        (500, "server_error", "failed"),
        (500, "timeout_error", "failed"),
    ],
)
async def test_a_status_is_a_refusal_or_a_failure(
    server: Scripted, session: aiohttp.ClientSession, status: int, reason: str, came: str
) -> None:
    sending = Sending(session, server.url)
    kind, _, code = reason.partition("/")
    await (await server.exchange(0)).error(status, kind, code or None)
    outcome = await sending.outcome()
    assert (outcome.status, outcome.reason, outcome.output_tokens) == (came, reason, 0)
    assert outcome.first_token_at is None
    assert sending.client.tally.examples == {reason: "no"}


@pytest.mark.parametrize(
    ("status", "came"), [(502, "failed"), (503, "refused"), (307, "failed"), (204, "failed")]
)
async def test_an_answer_that_is_not_json_goes_by_its_status(
    server: Scripted, session: aiohttp.ClientSession, status: int, came: str
) -> None:
    sending = Sending(session, server.url)
    await (await server.exchange(0)).status(status, "" if status == 204 else "<html>", Location="/")
    outcome = await sending.outcome()
    assert (outcome.status, outcome.reason) == (came, f"HTTP {status}")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("kind", "tokens", "came"),
    [
        ("server_error", 1, "failed"),
        ("service_unavailable_error", 0, "refused"),
        ("timeout_error", 0, "refused"),
        ("timeout_error", 1, "failed"),
    ],
)
async def test_an_error_event_ends_a_request(
    server: Scripted, session: aiohttp.ClientSession, kind: str, tokens: int, came: str
) -> None:
    sending = Sending(session, server.url, retries=3)
    exchange = await server.exchange(0)
    await exchange.begin()
    await exchange.raw(b": keep-alive\n\n")
    for _ in range(tokens):
        await exchange.token()
    await exchange.event({"error": {"message": "no", "type": kind, "code": "c"}})
    await exchange.event("[DONE]")
    await exchange.end()
    outcome = await sending.outcome()
    assert (outcome.status, outcome.reason) == (came, f"{kind}/c")
    assert outcome.output_tokens == tokens


async def test_a_stream_without_its_end_was_cut(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    for number, ending in enumerate(("end", "cut", "reset")):
        sending = Sending(session, server.url, retries=3)
        exchange = await server.exchange(number)
        await exchange.begin()
        await sending.at(2.0, exchange)
        await exchange.end() if ending == "end" else getattr(exchange, ending)()
        outcome = await sending.outcome()
        assert outcome.status == "failed"
        assert outcome.reason in ("stream cut", "connection reset")
        assert (outcome.output_tokens, outcome.first_token_at) == (1, 2.0)


async def test_what_follows_the_end_of_an_answer_does_not_matter(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending, exchange = await begun(server, session)
    await sending.at(2.0, exchange)
    reads = sending.clock.reads
    await exchange.event({"choices": [], "usage": {"completion_tokens": 3}})
    await exchange.event("[DONE]")
    while sending.clock.reads == reads:
        await asyncio.sleep(0)
    exchange.cut()
    outcome = await sending.outcome()
    assert (outcome.status, outcome.output_tokens) == ("ok", 3)


async def test_an_answer_without_a_token_is_none(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending, exchange = await begun(server, session)
    await exchange.finish(prompt=5, output=0)
    assert (await sending.outcome()).reason == "empty answer"


async def test_connections_that_fail_say_how(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    (port,) = free_ports(1)
    nobody = Sending(session, URL(f"http://127.0.0.1:{port}/"))
    assert (await nobody.outcome()).reason == "connection refused"
    dropped = Sending(session, server.url)
    (await server.exchange(0)).cut()
    assert (await dropped.outcome()).reason == "connection closed"
    for sending in (nobody, dropped):
        outcome = await sending.outcome()
        assert (outcome.status, outcome.output_tokens) == ("failed", 0)
        assert sending.client.tally.under_way == 0


async def test_what_does_not_speak_tls_says_so(session: aiohttp.ClientSession) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sending = Sending(session, URL(f"https://127.0.0.1:{port}/"))
        assert (await sending.outcome()).reason == "no TLS"


async def test_what_does_not_speak_http_says_so(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending = Sending(session, server.url)
    exchange = await server.exchange(0)
    exchange.writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    assert (await sending.outcome()).reason == "not HTTP"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Timeout]:
    """The client's time limits; one that is rescheduled to 0 ends at once."""
    limits, timeout = list[asyncio.Timeout](), asyncio.timeout

    def kept(seconds: float) -> asyncio.Timeout:
        limits.append(timeout(seconds))
        return limits[-1]

    monkeypatch.setattr("experiments.replay.client.asyncio.timeout", kept)
    return limits


async def test_patience_ends_before_an_answer(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    outcome = await Sending(session, server.url, timeout_s=0.02).outcome()
    assert (outcome.status, outcome.reason) == ("failed", "client timeout")


async def test_patience_ends_within_an_answer(
    server: Scripted, session: aiohttp.ClientSession, patience: list[asyncio.Timeout]
) -> None:
    sending, exchange = await begun(server, session)
    await sending.at(2.0, exchange)
    patience[0].reschedule(0)
    outcome = await sending.task
    assert (outcome.reason, outcome.output_tokens) == ("client timeout", 1)


async def test_a_refused_request_comes_back_when_it_was_told_to(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending = Sending(session, server.url, retries=2)
    await sending.clock.move(1.0)
    busy = {"Retry_After": "2", "retry_after_ms": "1500"}
    await (await server.exchange(0)).error(429, "rate_limit_error", "queue_full", **busy)
    await sending.waits()
    await sending.clock.move(2.4)
    assert len(server.asked) == 1
    await sending.clock.move(2.5)
    exchange = await server.exchange(1)
    await exchange.begin()
    await sending.at(3.0, exchange)
    await exchange.finish(prompt=5, output=3)
    outcome = await sending.outcome()
    assert (outcome.status, outcome.reason, outcome.ttft_s) == ("ok", "", 2.0)
    assert sending.client.tally.retries == 1


async def test_the_last_refusal_stands(server: Scripted, session: aiohttp.ClientSession) -> None:
    sending = Sending(session, server.url, retries=1)
    soon = {"retry_after_ms": "1"}
    await (await server.exchange(0)).error(503, "service_unavailable_error", "c", **soon)
    while sending.client.tally.retries == 0:
        await sending.clock.move(sending.clock.now() + 1)
    await (await server.exchange(1)).error(429, "rate_limit_error", "queue_full", **soon)
    outcome = await sending.outcome()
    assert (outcome.status, outcome.reason) == ("refused", "rate_limit_error/queue_full")


async def test_patience_that_ends_before_a_retry_leaves_a_refusal(
    server: Scripted, session: aiohttp.ClientSession, patience: list[asyncio.Timeout]
) -> None:
    sending = Sending(session, server.url, retries=1)
    await (await server.exchange(0)).error(429, "rate_limit_error", "queue_full", retry_after="9")
    await sending.waits()
    patience[0].reschedule(0)
    outcome = await sending.task
    assert (outcome.status, outcome.reason) == ("refused", "rate_limit_error/queue_full")


async def test_nothing_is_sent_beyond_the_connections_there_may_be(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    first = Sending(session, server.url, connections=1)
    exchange = await server.exchange(0)
    second = await first.client.send(8, ARRIVAL, BODY)
    assert (second.status, second.reason) == ("failed", "no free connection")
    await exchange.whole()
    assert (await first.outcome()).status == "ok"
    assert len(server.asked) == 1


async def test_a_request_that_is_given_up_has_an_outcome(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending, exchange = await begun(server, session)
    await sending.at(2.0, exchange)
    sending.task.cancel()
    outcome = await sending.outcome()
    assert (outcome.status, outcome.reason, outcome.output_tokens) == ("failed", "interrupted", 1)


async def test_the_clients_own_lateness_is_told(
    server: Scripted, session: aiohttp.ClientSession
) -> None:
    sending = Sending(session, server.url)
    await sending.clock.move(1.25)
    await (await server.exchange(0)).whole()
    await sending.outcome()
    assert sending.client.tally.lateness_s == [0.25]

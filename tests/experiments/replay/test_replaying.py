"""A whole replay against a scripted server: nobody is lost, and the run says what was."""

import asyncio
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.loads.load import Arrival, Load
from experiments.loads.prompts import prompt_of
from experiments.replay import descriptors
from experiments.replay.body import Bodies, spelling
from experiments.replay.client import Tally
from experiments.replay.descriptors import TooManyConnections, connections
from experiments.replay.manner import Manner
from experiments.replay.replaying import replay
from experiments.replay.target import TargetError
from tests.experiments.replay.scripted import METRICS, Exchange, Scripted

FATES = ("whole", "short", "full", "gone", "late", "wrong", "broken", "cut", "reset", "error")
REFUSED = {"full", "gone", "late"}


async def meet(fate: str, exchange: Exchange) -> None:
    """Answer as is fated."""
    if fate == "whole":
        await exchange.whole()
    elif fate in ("full", "gone", "late"):
        status = {"full": 429, "gone": 503, "late": 504}[fate]
        await exchange.error(status, "t", fate)
    elif fate in ("wrong", "broken"):
        await exchange.error({"wrong": 400, "broken": 500}[fate], "t", fate)
    else:
        await exchange.begin()
        await exchange.token()
        if fate == "short":
            await exchange.finish(1, 1)
        elif fate == "error":
            await exchange.event({"error": {"type": "t", "code": "error"}})
            await exchange.end()
        else:
            getattr(exchange, fate)()


def fated(fates: Sequence[str]) -> Scripted:
    """A server that answers each request by its priority: its place in the load, and one."""
    return Scripted(lambda exchange: meet(fates[exchange.body["priority"] - 1], exchange))


def load_of(count: int, gap_s: float = 0.0, **more: Any) -> Load:
    return Load("hand", [Arrival(n * gap_s, 3, 2, n + 1, **more) for n in range(count)])


@given(st.lists(st.sampled_from(FATES), min_size=1, max_size=12))
@settings(max_examples=30)
def test_no_request_is_lost_whatever_a_server_does(fates: list[str]) -> None:
    async def run() -> None:
        async with fated(fates).running() as server:
            measured = await replay(load_of(len(fates)), server.url, Manner())
        outcomes = measured.run.outcomes
        assert [one.index for one in outcomes] == list(range(len(fates)))
        for fate, one in zip(fates, outcomes, strict=True):
            want = "ok" if fate in ("whole", "short") else "failed"
            assert one.status == ("refused" if fate in REFUSED else want), fate
            assert bool(one.reason) == (one.status != "ok")
        assert measured.tally.ended == Counter(one.status for one in outcomes)
        assert measured.tally.under_way == 0
        assert measured.run.counts["short_answers"] == fates.count("short")

    asyncio.run(run())


async def test_requests_are_those_of_the_load() -> None:
    load = load_of(2, tenant="search")
    more = {"seed": 3, "temperature": 1}
    manner = Manner("sk-all", {"search": "sk-search"}, first_token_s=2.5, end_s=60, more=more)
    async with Scripted(Exchange.whole).running() as server:
        server.key = "sk-all"
        measured = await replay(load, server.url, manner)
    bodies = sorted((one.body for one in server.asked), key=lambda body: body["priority"])
    assert bodies[1] == {
        "model": "m",
        "prompt": prompt_of(load, 1, 1000),
        "max_tokens": 2,
        "temperature": 1,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": 2,
        "first_token_timeout_ms": 2500,
        "timeout_ms": 60000,
        "seed": 3,
    }
    assert {one.headers["authorization"] for one in server.asked} == {"Bearer sk-search"}
    assert [one.output_tokens for one in measured.run.outcomes] == [2, 2]
    assert measured.run.kind == "measured"
    assert measured.run.settings["samples"] == "none: no metrics of Tidegate's"
    assert measured.run.samples == []


async def test_prompts_of_words_and_priorities_as_vllm_reads_them() -> None:
    load = Load("hand", [Arrival(0, 6, 1, 4), Arrival(0, 6, 1)])
    async with Scripted(Exchange.whole).running() as server:
        await replay(load, server.url, Manner(model="n", text=True, lower_first=True))
    first, second = sorted((one.body for one in server.asked), key=lambda body: len(body))
    assert "priority" not in first
    assert second["priority"] == -4
    assert second["model"] == "n"
    assert len(second["prompt"].split()) == 6
    assert first["prompt"] != second["prompt"]


@pytest.mark.parametrize("text", [False, True])
def test_prompts_of_another_seed_have_nothing_in_common_but_share_as_much(text: bool) -> None:
    load = Load("hand", [Arrival(0, 40, 1, pieces=(7,)), Arrival(0, 40, 1, pieces=(7, 8))], 16)

    def prompts(seed: int | None) -> list[Any]:
        bodies = Bodies(load, "m", spelling(1000, text, seed))
        found = [json.loads(bodies.of(index))["prompt"] for index in range(2)]
        return [one.split() if text else one for one in found]

    one, other = prompts(1), prompts(2)
    assert one == prompts(1)
    assert one[0][:16] == one[1][:16]
    assert one[0][16:] != one[1][16:]
    assert one[0][:16] != other[0][:16]
    assert one[0][16:] != other[0][16:]
    assert [len(prompt) for prompt in other] == [40, 40]


async def test_metrics_are_read_before_and_after() -> None:
    async with Scripted(Exchange.whole).running() as server:
        server.metrics = METRICS
        measured = await replay(load_of(1), server.url, Manner())
    assert len(measured.run.samples) == 2
    assert measured.run.counts["preemptions"] == 0
    assert measured.run.settings["samples"] == "from /metrics"


async def test_progress_is_told_to_the_end() -> None:
    told: list[Counter[str]] = []

    def progress(seconds: float, tally: Tally) -> None:
        told.append(Counter(tally.ended))

    async with Scripted(Exchange.whole).running() as server:
        await replay(load_of(3), server.url, Manner(), progress)
    assert told[-1] == {"ok": 3}


async def interrupted(press: Callable[[], None], then: Callable[[Exchange], Any]) -> Any:
    """Replay two requests of which the second comes much later, and press when one has come."""
    load = Load("hand", [Arrival(0.0, 3, 2), Arrival(1000.0, 3, 2)])
    async with Scripted().running() as server:
        task = asyncio.create_task(replay(load, server.url, Manner()))
        exchange = await server.exchange(0)
        press()
        await then(exchange)
        return (await asyncio.wait_for(task, 20)).run


async def test_ctrl_c_sends_no_more_and_awaits_answers() -> None:
    run = await interrupted(lambda: os.kill(os.getpid(), signal.SIGINT), Exchange.whole)
    assert [(one.index, one.status) for one in run.outcomes] == [(0, "ok")]
    assert run.settings["interrupted after"] == "1 requests"


async def test_a_second_ctrl_c_or_sigterm_gives_answers_up() -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)

    for press in (twice, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        run = await interrupted(press, Exchange.begin)
        assert [(one.status, one.reason) for one in run.outcomes] == [("failed", "interrupted")]


@pytest.mark.parametrize(
    ("models", "message"),
    [({"data": []}, "lists no model"), ("<html>", "lists no model"), (None, "lists no model")],
)
async def test_a_server_without_a_model_needs_its_name(models: Any, message: str) -> None:
    async with Scripted(Exchange.whole).running() as server:
        server.models = models
        with pytest.raises(TargetError, match=message):
            await replay(load_of(1), server.url, Manner())
        named = await replay(load_of(1), server.url, Manner(model="mine"))
    assert named.run.settings["model"] == "mine"


async def test_a_server_that_is_not_there_or_wants_a_key_is_told_before_anything_is_sent() -> None:
    async with Scripted(Exchange.whole).running() as server:
        server.key = "sk"
        with pytest.raises(TargetError, match="--api-key"):
            await replay(load_of(1), server.url, Manner(api_key="other"))
    with pytest.raises(TargetError, match="does not answer: connection refused"):
        await replay(load_of(1), server.url, Manner())
    assert server.asked == []


def test_connections_are_bounded_by_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = [256, 1000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limit.__setitem__(0, pair[0]))
    assert connections(None, 10) == 10
    assert limit[0] == 256
    assert connections(500, 10) == 500
    assert limit[0] == 500 + descriptors._OTHERS
    assert connections(None, 5000) == 1000 - descriptors._OTHERS
    with pytest.raises(TooManyConnections, match=r"--max-connections must be at most 936 here"):
        connections(937, 1)


def test_a_limit_that_may_not_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connections(None, 5000) == 256 - descriptors._OTHERS

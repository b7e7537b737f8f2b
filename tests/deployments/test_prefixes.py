"""A conversation's second turn goes where its first was computed: all but Ray and the model."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.config import ServeConfig
from deployments.intake import Intake
from deployments.messages import Heard, ReplicaInfo, Vitals
from deployments.news import Figures, News
from deployments.openai.call import Job
from deployments.openai.completions import CompletionCall
from deployments.openai.terms import Terms
from deployments.order import Order
from deployments.prefix import Prefix, prefix_of
from deployments.prefix_news import PrefixNews
from deployments.reporting import Reporter
from deployments.tenant import Tenant
from engine.prefix_cache import BlockManager
from engine.prefix_hash import chain, names_after
from engine.request import SamplingParams
from router.report import Report
from tests.deployments.fleet import WELL, Fleet
from tests.deployments.sequences import FakeReplica, FakeRouter, Run, until

PARAMS = SamplingParams(max_tokens=8, seed=1)
INFO = ReplicaInfo("f", 4, 40, 160)
PROMPT = tuple(range(50))


def order(prompt: tuple[int, ...], prefix: Prefix | None) -> Order:
    return Order("k", prompt, PARAMS, 0, 0, 0.0, "id", prefix=prefix)


def test_a_ticket_says_what_its_prompt_begins_with_if_anybody_looks() -> None:
    told = prefix_of(PROMPT, 4, b"")
    assert told.told == tuple(chain(PROMPT, 4))
    assert order(PROMPT, told).ticket("k", "k", INFO, (), False).prefix == told.told
    assert order(PROMPT, None).ticket("k", "k", INFO, (), False).prefix == ()
    assert order(PROMPT, None).ticket("k", "k", INFO, (7, 8), True).prefix == ()


async def test_what_goes_on_elsewhere_says_so_too_with_what_was_generated() -> None:
    router, a, b = FakeRouter("a", "b"), FakeReplica("a"), FakeReplica("b")
    run = Run(router, a, b, prefix=prefix_of((1, 2, 3, 4, 5), 4, b""))
    await until(lambda: a.submitted)
    a.send(7, 8, 9, text="x")
    a.die()
    await until(lambda: b.submitted)
    run.task.cancel()
    first, again = (ticket.prefix for ticket, _ in router.placed)
    assert first == tuple(chain((1, 2, 3, 4), 4))
    assert again == tuple(chain((1, 2, 3, 4, 5, 7, 8, 9), 4))


@given(st.integers(0, 150), st.integers(1, 150))
def test_a_longer_sequence_is_told_of_as_if_hashed_from_its_beginning(one: int, more: int) -> None:
    prompt, generated = tuple(range(one)), tuple(range(1_000, 1_000 + more))
    moved = order(prompt, prefix_of(prompt, 4, b"s")).ticket("k", "k", INFO, generated, True)
    assert moved.prefix == prefix_of(prompt + generated, 4, b"s").told


def test_a_move_hashes_what_was_generated_and_not_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: all that a dead replica ran is hashed on the event loop, before it can go on."""
    asked = order(PROMPT, prefix_of(PROMPT, 4, b""))
    hashed: list[int] = []

    def names(parent: bytes, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
        hashed.append(len(tokens))
        return names_after(parent, tokens, block_tokens)

    monkeypatch.setattr("deployments.prefix.names_after", names)
    monkeypatch.setattr("engine.prefix_hash.names_after", names)
    asked.ticket("k", "k", INFO, (7, 8, 9), True)
    assert hashed == [len(PROMPT) % 4 + 3]


def test_choices_of_one_prompt_share_its_prefix() -> None:
    intake = Intake(ServeConfig(placement="prefix_affinity", block_size=4), random.Random(0))
    tenant, call = Tenant("search"), _call(PROMPT, PROMPT, (9,) * 8, (9,) * 8)
    one, two, three, four = intake._with_prefixes(lambda: call, tenant)().jobs
    salt = intake.salt(tenant, call.terms)
    assert one.prefix == two.prefix == prefix_of(PROMPT, 4, salt)
    assert three.prefix == four.prefix == prefix_of((9,) * 8, 4, salt)
    assert one.prefix.told == tuple(chain(PROMPT, 4, salt))


def test_the_replica_is_given_the_salt_that_the_ticket_was_hashed_with() -> None:
    """Fault: the router looks for blocks by names that no replica gives them."""
    salted = replace(order(PROMPT, prefix_of(PROMPT, 4, b"s")), salt=b"s")
    assert salted.submission("k", (7, 8)).salt == b"s"
    ticket = salted.ticket("k", "k", INFO, (7, 8), True)
    assert ticket.prefix == tuple(chain((*PROMPT, 7, 8), 4, b"s"))


def test_who_shares_blocks_with_whom() -> None:
    """Fault: a tenant finds out by timing what another one asked."""

    def salt(intake: Intake, tenant: str, own: str) -> bytes:
        return intake.salt(Tenant(tenant), Terms(cache_salt=own))

    apart = Intake(ServeConfig(), random.Random(0))
    assert salt(apart, "", "") == b""
    asked = [(tenant, own) for tenant in ("", "a", "b") for own in ("", "a", "b")]
    assert len({salt(apart, *each) for each in asked}) == len(asked)
    assert salt(apart, "a", "b") == salt(apart, "a", "b")
    shared = Intake(ServeConfig(prefix_cache_scope="shared"), random.Random(0))
    assert salt(shared, "a", "") == salt(shared, "b", "") == b""
    assert salt(shared, "a", "x") == salt(shared, "b", "x") != salt(shared, "b", "y")


def _call(*prompts: tuple[int, ...]) -> Any:
    jobs = tuple(Job(prompt, PARAMS) for prompt in prompts)
    return CompletionCall("id", 0, "m", SimpleNamespace(cache_salt="x"), jobs, each=2)  # type: ignore[arg-type]


class Node:
    """A replica's memory and reporter, without a model."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.manager = BlockManager(4, range(40))
        self.name, self._fleet = name, fleet
        news = News(name, "f", 1, 1, PrefixNews(self))
        self.reporter = Reporter(news, self._figures, self._send)

    def prefix_events(self) -> tuple[list[int], list[int]]:
        return self.manager.take_events()

    def held_prefixes(self, most: int) -> list[int]:
        return self.manager.held_prefixes(most)

    def compute(self, *tokens: int) -> None:
        """Run a request from its beginning to its end."""
        self.manager.allocate(1, tokens)
        self.manager.release(1, tokens)

    def _figures(self) -> Figures:
        free, total = self.manager.free_blocks, self.manager.total_blocks
        return Figures(total, free, 0, 8, 0, 0, 8, False, held=(), ending=(), vitals=WELL)

    async def _send(self, report: Report, vitals: Vitals) -> Heard:
        return await self._fleet.router.report(report, vitals, INFO)


async def first_and_second_turn(placement: str) -> tuple[bool, Mapping[str, str]]:
    """Whether the second went where the first did, and what the metrics say."""
    fleet = Fleet(replicas=2, placement=placement)
    nodes = {name: Node(name, fleet) for name in ("r1", "r2")}
    for node in nodes.values():
        await node.reporter._report()

    async def ask(key: str, prompt: tuple[int, ...]) -> str:
        prefix = prefix_of(prompt, 4, b"") if placement == "prefix_affinity" else None
        ticket = order(prompt, prefix).ticket(key, key, INFO, (), False)
        answer = await fleet.router.acquire("g", ticket)
        assert isinstance(answer, str)
        return answer

    home = nodes[await ask("one", PROMPT)]
    home.compute(*PROMPT, 7, 8, 9)
    home.reporter.admitted("one")
    home.reporter.ended("one")
    await home.reporter._report()
    await fleet.router.release({"one": True})
    second = await ask("two", (*PROMPT, 7, 8, 9, *range(5)))
    page = await fleet.router.metrics("m")
    lines = [line for line in page.splitlines() if "placed_by_prefix_total{" in line]
    return second == home.name, {line.split('"')[3]: line.split()[-1] for line in lines}


async def test_a_conversation_stays_where_it_was_computed() -> None:
    stays, metrics = await first_and_second_turn("prefix_affinity")
    assert stays
    assert metrics == {"here": "1", "elsewhere": "0", "nowhere": "1"}


async def test_by_default_it_goes_to_who_was_used_longest_ago() -> None:
    stays, metrics = await first_and_second_turn("most_free_blocks")
    assert not stays
    assert metrics == {"here": "0", "elsewhere": "0", "nowhere": "0"}

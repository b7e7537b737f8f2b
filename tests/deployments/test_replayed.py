"""A load sent to a real server by ``tidegate replay``'s client."""

import asyncio
from random import Random

import pytest

from experiments.loads.load import Arrival, Load
from experiments.replay.manner import Manner
from experiments.replay.replaying import replay
from experiments.replay.target import base_url
from tests.deployments.conftest import Server, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(300)]


def test_every_token_of_a_load_is_accounted_for(small_pools: Server) -> None:
    eventually(small_pools.idle)
    rng = Random(1)
    arrivals = [
        Arrival(n / 50, rng.randint(1, 60), rng.randint(1, 12), rng.choice((-1, 0, 3)))
        for n in range(12)
    ]
    load = Load("twelve", arrivals)
    measured = asyncio.run(replay(load, base_url(small_pools.url), Manner()))
    run, tally = measured.run, measured.tally
    assert [(one.status, one.reason) for one in run.outcomes] == [("ok", "")] * 12
    assert [one.output_tokens for one in run.outcomes] == [one.output_tokens for one in arrivals]
    assert tally.prompt_tokens == sum(one.prompt_tokens for one in arrivals)
    assert (tally.short, tally.uncounted) == (0, 0)
    for one in run.outcomes:
        assert one.first_token_at is not None
        assert one.last_token_at is not None
        assert one.at < one.first_token_at <= one.last_token_at <= run.seconds
        assert one.longest_gap_s <= one.last_token_at - one.first_token_at
    assert run.settings["model"] == "SmolLM2-135M-Instruct"
    assert run.counts["placements"] == 12
    assert {sample.total_blocks for sample in run.samples} == {96}
    assert run.samples[-1].serving == 2
    assert eventually(small_pools.idle)

"""What each policy wants, and that more work never makes one want less."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.autoscaling import Demand, Scaler
from deployments.autoscaling.policies import MARGIN, Band, blocks, ttft, wait
from tests.deployments.autoscaling.fleet import BLOCKS, QUIET, SCALER, SEATS, with_load

POLICIES = ("blocks", "wait", "ttft")
SCALERS = st.sampled_from([replace(SCALER, policy=policy) for policy in POLICIES])

DEMANDS = st.builds(
    Demand,
    at=st.floats(0, 1e9),
    replicas=st.integers(0, 20),
    total_blocks=st.integers(0, 10_000),
    free_blocks=st.integers(-10_000, 10_000),
    seats=st.integers(0, 1_000),
    queued=st.integers(0, 1_000),
    queued_blocks=st.integers(0, 10_000),
    running=st.integers(0, 1_000),
    oldest_wait_s=st.floats(0, 1e6),
    idle_s=st.floats(0, 1e6),
    ttft_s=st.none() | st.floats(0, 1e6),
)


@settings(deadline=None)
@given(SCALERS, DEMANDS, st.integers(0, 20))
def test_a_band_is_in_order_and_someone_who_waits_needs_a_replica(
    scaler: Scaler, demand: Demand, target: int
) -> None:
    band = scaler.band(demand, target)
    assert 0 <= band.least <= band.most
    if demand.queued and demand.replicas == 0:
        assert band.least >= 1
        assert band.most >= target


@settings(deadline=None)
@given(DEMANDS, st.integers(1, 20), st.integers(0, 500), st.integers(0, 500))
def test_more_blocks_or_requests_never_want_fewer_replicas(
    demand: Demand, target: int, more_blocks: int, more_requests: int
) -> None:
    more = replace(
        demand,
        free_blocks=demand.free_blocks - more_blocks,
        queued_blocks=demand.queued_blocks + more_blocks,
        queued=demand.queued + more_requests,
        running=demand.running + more_requests,
    )
    before, after = blocks(demand, target, 0.8), blocks(more, target, 0.8)
    assert before.least <= after.least
    assert before.most <= after.most


@settings(deadline=None)
@given(DEMANDS, st.integers(1, 20), st.floats(0, 100), st.sampled_from(["wait", "ttft"]))
def test_a_longer_wait_never_wants_fewer_replicas(
    demand: Demand, target: int, longer_s: float, policy: str
) -> None:
    scaler = replace(SCALER, policy=policy)
    longer = replace(
        demand,
        oldest_wait_s=demand.oldest_wait_s + longer_s,
        ttft_s=None if demand.ttft_s is None else demand.ttft_s + longer_s,
    )
    before, after = scaler.band(demand, target), scaler.band(longer, target)
    assert before.least <= after.least
    assert before.most <= after.most


@pytest.mark.parametrize(
    ("load", "least", "most"),
    [(0.0, 0, 0), (0.5, 1, 1), (0.8, 1, 2), (0.81, 2, 2), (2.4, 3, 4), (8.0, 10, 11)],
)
def test_blocks_used_and_waited_for_set_the_number(load: float, least: int, most: int) -> None:
    assert blocks(with_load(load, replicas=3), 3, utilization=0.8) == Band(least, most)


def test_full_seats_want_a_replica_though_blocks_are_free() -> None:
    """Many small requests: the queue grows beside empty blocks."""
    demand = replace(QUIET, free_blocks=BLOCKS - 20, running=SEATS, queued=30, queued_blocks=30)
    assert demand.load == pytest.approx((SEATS + 30) / SEATS)
    assert blocks(demand, 1, utilization=1.0).least == 3
    assert blocks(replace(demand, seats=0), 1, utilization=1.0).least == 1


def test_promises_beyond_what_there_is_count() -> None:
    assert blocks(replace(QUIET, free_blocks=-50), 1, utilization=1.0).least == 2


@pytest.mark.parametrize(("wait_s", "least"), [(1.0, 0), (1.1, 5), (1.5, 6), (9.0, 8)])
def test_wait_grows_in_proportion_and_doubles_at_most(wait_s: float, least: int) -> None:
    demand = with_load(12.0, replicas=4, oldest_wait_s=wait_s)
    assert wait(demand, 4, limit_s=1.0, utilization=0.8).least == least


def test_wait_asks_for_no_more_than_the_backlog_fills() -> None:
    """The oldest has waited long, but hardly anybody is left: one more is enough."""
    demand = with_load(4.2, replicas=4, oldest_wait_s=60.0)
    assert wait(demand, 4, limit_s=1.0, utilization=0.8) == Band(5, 5)


def test_wait_grows_by_one_where_the_free_blocks_are_scattered() -> None:
    """A large request fits no replica, though all of them together have the blocks."""
    demand = replace(with_load(2.7, replicas=3), queued=1, queued_blocks=15, oldest_wait_s=3.0)
    assert demand.load < 3
    assert wait(demand, 3, limit_s=1.0, utilization=0.8) == Band(4, 4)


@pytest.mark.parametrize("policy", ["wait", "ttft"])
def test_the_last_growth_serves_before_there_is_another(policy: str) -> None:
    """A wait that goes on while replicas start must not be answered again and again."""
    scaler = replace(SCALER, policy=policy)
    demand = with_load(50.0, replicas=2, oldest_wait_s=30.0, ttft_s=30.0)
    assert scaler.band(demand, 2).least == 4
    assert scaler.band(demand, 4) == Band(0, 4)


@pytest.mark.parametrize("policy", ["wait", "ttft"])
def test_one_goes_if_nobody_waits_and_the_rest_can_carry_the_load(policy: str) -> None:
    scaler = replace(SCALER, policy=policy)
    fits = 2 * scaler.target_utilization / (1 + MARGIN)
    calm = with_load(math.floor(fits * 100) / 100, replicas=3, ttft_s=0.1)
    busy = with_load(math.ceil(fits * 100) / 100, replicas=3, ttft_s=0.1)
    assert scaler.band(calm, 3).most == 2
    assert scaler.band(busy, 3).most == 3


def test_wait_keeps_all_while_somebody_waits() -> None:
    demand = replace(QUIET, replicas=3, queued=1, queued_blocks=1, running=1)
    assert wait(demand, 3, limit_s=1.0, utilization=0.8) == Band(0, 3)


@pytest.mark.parametrize(("ttft_s", "most"), [(0.9, 2), (1.1, 3), (2.0, 3)])
def test_ttft_must_be_well_below_its_target_before_one_goes(ttft_s: float, most: int) -> None:
    demand = with_load(0.5, replicas=3, ttft_s=ttft_s)
    assert ttft(demand, 3, limit_s=2.0, utilization=0.8) == Band(0, most)


def test_ttft_asks_for_no_more_replicas_than_there_are_requests() -> None:
    """A long prompt alone on a replica is slow; more replicas would not make it faster."""
    demand = replace(QUIET, free_blocks=10, running=1, ttft_s=60.0)
    assert ttft(demand, 1, limit_s=2.0, utilization=0.8) == Band(0, 1)
    assert ttft(replace(demand, running=2), 1, limit_s=2.0, utilization=0.8) == Band(2, 2)


def test_ttft_takes_the_oldest_wait_where_no_token_has_come_lately() -> None:
    stuck = with_load(9.0, replicas=1, oldest_wait_s=20.0)
    assert ttft(stuck, 1, limit_s=2.0, utilization=0.8) == Band(2, 2)

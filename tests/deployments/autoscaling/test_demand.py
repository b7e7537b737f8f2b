"""A demand travels as metrics that Serve keeps over time, replica by replica."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray.serve._private.metrics_utils import InMemoryMetricsStore

from deployments.autoscaling import Demand, stats_of
from deployments.autoscaling.demand import RawMetrics, newest_demand
from tests.deployments.autoscaling.fleet import QUIET, with_load
from tests.deployments.autoscaling.test_policies import DEMANDS


def relayed(*stores: InMemoryMetricsStore) -> RawMetrics:
    """What Serve's controller shows of what the replicas' stores sent."""
    metrics: dict[str, dict[str, object]] = {}
    for number, store in enumerate(stores):
        for name, series in store.data.items():
            metrics.setdefault(str(name), {})[f"replica-{number}"] = series
    return metrics  # type: ignore[return-value]


def store_of(*demands: Demand, late_s: float = 0.0) -> InMemoryMetricsStore:
    store = InMemoryMetricsStore()
    for demand in demands:
        store.add_metrics_point(stats_of(demand), demand.at + late_s)
    return store


@settings(deadline=None)
@given(st.lists(DEMANDS, min_size=1, max_size=4, unique_by=lambda demand: demand.at))
@example([replace(QUIET, ttft_s=0.0)])
def test_comes_out_as_it_went_in(demands: list[Demand]) -> None:
    demands.sort(key=lambda demand: demand.at)
    assert newest_demand(relayed(store_of(*demands))) == demands[-1]


@settings(deadline=None)
@given(DEMANDS)
def test_values_are_floats(demand: Demand) -> None:
    """Serve stops asking a replica for good if its first values are anything else."""
    stats = stats_of(demand)
    assert type(stats) is dict
    assert all(type(value) is float for value in stats.values())


def test_the_newest_by_the_routers_clock_counts_not_the_one_that_came_last() -> None:
    """A replica that does not reach the router goes on relaying what it heard long ago."""
    old = store_of(with_load(9.0, 1, at=10.0), late_s=50.0)
    new = store_of(with_load(0.2, 3, at=30.0), late_s=1.0)
    assert newest_demand(relayed(old, new)) == with_load(0.2, 3, at=30.0)
    assert newest_demand(relayed(new, old)) == with_load(0.2, 3, at=30.0)


def test_an_old_time_to_first_token_does_not_join_a_newer_demand() -> None:
    busy, idle = replace(QUIET, at=1.0, ttft_s=9.0), replace(QUIET, at=2.0)
    assert newest_demand(relayed(store_of(busy, idle))) == idle


def test_nothing_relayed_is_no_demand() -> None:
    """Replicas that have just started have not heard from the router yet."""
    incomplete = InMemoryMetricsStore()
    incomplete.add_metrics_point({"at": 1.0}, 1.0)
    assert newest_demand(None) is None
    assert newest_demand({}) is None
    assert newest_demand({"at": {"r": []}}) is None
    assert newest_demand(relayed(InMemoryMetricsStore(), incomplete)) is None
    assert newest_demand(relayed(incomplete, store_of(QUIET))) == QUIET

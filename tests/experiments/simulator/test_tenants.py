"""What a tenant has computed is found by that tenant, unless all share it; who may come at all."""

from dataclasses import replace
from typing import Any

import pytest

from deployments.config import ServeConfig
from deployments.tenant import Access, Tenant
from experiments.loads.load import Arrival
from experiments.simulator.allowed import check_allowed
from experiments.simulator.simulation import simulate
from tests.experiments.simulator.runs import Linear, load, scenario

ACCESS = Access((Tenant("a", min_priority=0, max_priority=5), Tenant("b")), ())


def cached(names: str, access: Access | None, **settings: Any) -> list[int]:
    """Tokens that each of some requests finds; all of them begin with the same 64, one by one."""
    fleet = scenario(prefix_cache=True, **{"replicas": 1} | settings)
    if access is not None:
        fleet = replace(fleet, config=fleet.config.with_access(access))
    pieces = (1, 2, 3, 4)
    arrivals = [Arrival(place * 2.0, 70, 5, 0, name, pieces) for place, name in enumerate(names)]
    return [one.cached_tokens for one in simulate(fleet, load(arrivals), Linear()).outcomes]


def test_a_tenant_finds_what_is_its_own() -> None:
    """Fault: hits that a server, which keeps tenants apart, has not."""
    assert cached("abab", ACCESS) == [0, 0, 64, 64]


def test_all_find_it_where_all_share_or_nobody_knows_tenants() -> None:
    assert cached("abab", ACCESS, prefix_cache_scope="shared") == [0, 64, 64, 64]
    assert cached("abab", None) == [0, 64, 64, 64]


@pytest.mark.parametrize(("tenant", "replicas", "found"), [("a", 1, 64), ("b", 2, 0)])
def test_the_router_sends_a_tenant_where_its_own_is(tenant: str, replicas: int, found: int) -> None:
    """Fault: it is told of prefixes by other names than replicas have for them."""
    fleet = scenario(prefix_cache=True, placement="prefix_affinity")
    fleet = replace(fleet, config=fleet.config.with_access(ACCESS))
    # The first still runs when the second comes, so the other replica has more room.
    first = Arrival(0.0, 70, 400, 0, "a", (1, 2, 3, 4))
    second = replace(first, at=2.0, tenant=tenant)
    outcomes = simulate(fleet, load([first, second]), Linear()).outcomes
    assert len({one.replica for one in outcomes}) == replicas
    assert [one.cached_tokens for one in outcomes] == [0, found]


@pytest.mark.parametrize(
    ("tenant", "priority", "says"),
    [
        ("c", 0, "tenant must be one of the key file, which has a, b, not 'c'"),
        ("a", 6, "priority must be from 0 to 5, as the key file for 'a' says, not 6"),
        ("a", -1, "priority must be from 0 to 5, as the key file for 'a' says, not -1"),
        ("b", 1_001, "priority must be from -1000 to 1000, as the key file for 'b' says, not 1001"),
        ("", -1_001, "priority must be from -1000 to 1000, as max_priority says, not -1001"),
    ],
)
def test_what_a_server_refuses_is_refused_before_the_run(
    tenant: str, priority: int, says: str
) -> None:
    requests = load([Arrival(0.0, 5, 5, tenant="b"), Arrival(1.0, 5, 5, priority, tenant)])
    with pytest.raises(ValueError, match=says):
        check_allowed(ServeConfig().with_access(ACCESS), requests)


def test_without_a_key_file_tenants_have_any_name_and_all_the_priorities_there_are() -> None:
    requests = load([Arrival(0.0, 5, 5, 20, "c")])
    check_allowed(ServeConfig(), requests)
    with pytest.raises(ValueError, match="from -10 to 10, as max_priority says, not 20"):
        check_allowed(ServeConfig.of({"max_priority": 10}), requests)

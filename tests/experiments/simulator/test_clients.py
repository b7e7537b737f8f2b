"""Clients come back as those of a replay do, and as often."""

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from multidict import CIMultiDict

from deployments.messages import Refusal, RefusalKind
from deployments.order import Failed, Refused
from deployments.refused import api_error
from deployments.tenant import Access, Tenant
from experiments.loads.load import Arrival
from experiments.replay.retry import Retry
from experiments.simulator.clients import Clients
from experiments.simulator.errand import Errand
from experiments.simulator.outcome import Run
from experiments.simulator.simulation import simulate
from experiments.simulator.timeline import Timeline
from tests.experiments.simulator.runs import Linear, load, scenario


@pytest.mark.parametrize("kind", list(RefusalKind))
def test_a_client_does_what_one_of_a_replay_does(kind: RefusalKind) -> None:
    """Fault: two readings of one option, so that a simulation has refusals that a replay lacks."""
    fleet, requests = scenario(seed=3, retries=2, network_s=0.0), load([Arrival(0.0, 5, 5)])
    for tries, retry_after in product((1, 2, 3), (0.0, 0.2, 3.0, 61.0, 119.0, 121.0)):
        timeline, came = Timeline(), list[float]()
        clients = Clients(fleet, requests, timeline, timeline.stop)
        clients._arrived = lambda _, timeline=timeline, came=came: came.append(timeline.now)
        errand = Errand(requests.arrivals[0], clients.outcomes[0])
        errand.tries = tries
        told = api_error(Refused(Refusal(kind, retry_after, message="end")))
        again = clients.come_back(errand, told)
        timeline.run()
        headers = CIMultiDict(told.headers())
        wait_s = Retry(2, Random("3 clients")).wait_s(tries, told.status, headers)
        assert came == ([] if wait_s is None else [wait_s])
        assert (again, errand.tries) == (wait_s is not None, tries + again)


def test_what_the_server_could_not_do_is_asked_for_again() -> None:
    fleet, requests = scenario(retries=1), load([Arrival(0.0, 5, 5)])
    clients = Clients(fleet, requests, timeline := Timeline(), timeline.stop)
    clients._arrived = lambda errand: None
    errand = Errand(requests.arrivals[0], clients.outcomes[0])
    assert clients.come_back(errand, api_error(Failed("too many replicas died under it")))


def metered(output_tokens: int) -> Run:
    """One token a second; the second request comes when the first has used up what there is."""
    access = Access((Tenant("a", tokens_per_minute=60),), ())
    fleet = scenario(retries=1)
    fleet = replace(fleet, config=fleet.config.with_access(access))
    first = Arrival(0.0, 50, output_tokens, tenant="a")
    return simulate(fleet, load([first, Arrival(5.0, 40, 5, tenant="a")]), Linear())


def test_a_client_waits_for_as_long_as_it_is_told() -> None:
    """Fault: it comes again after a second, again and again, until it gives up."""
    run = metered(40)
    assert [one.status for one in run.outcomes] == ["ok", "ok"]
    assert 60 < (run.outcomes[1].ttft_s or 0) < 120
    assert run.counts["retries"] == 1


def test_a_client_that_is_told_to_wait_for_minutes_gives_up() -> None:
    run = metered(200)
    assert [one.status for one in run.outcomes] == ["ok", "refused"]
    assert run.outcomes[1].reason == "rate_limit_error/tenant_tokens_exceeded"
    assert run.counts["retries"] == 0


def test_what_ran_out_of_time_is_not_asked_for_again() -> None:
    """Fault: a client that sends again what the server tells it not to."""
    crowd = load([Arrival(place / 1_000, 10, 30) for place in range(60)])
    limits: dict[str, Any] = {"first_token_s": 0.6, "retries": 3}
    run = simulate(scenario(max_num_seqs=4, lookahead=0, **limits), crowd, Linear())
    assert {one.status for one in run.outcomes} == {"ok", "refused"}
    assert run.counts["retries"] == 0

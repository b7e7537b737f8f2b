"""What is counted adds up, and the page is one that Prometheus reads."""

import pickle
from dataclasses import replace
from typing import TypeAlias

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.exposition import VLLM_NAMES, Page
from deployments.messages import Vitals
from deployments.metrics import COUNTERS, HISTOGRAMS, Counts, priority_class
from router.gauges import Gauges, ReplicaGauges
from tests.deployments.fleet import Fleet

REPLICA = ReplicaGauges(
    replica="r1",
    age_s=0.5,
    suspect=False,
    open=True,
    total_blocks=10,
    free_blocks=4,
    effective_free_blocks=4,
    running=3,
    max_seqs=8,
    waiting=2,
    charged=0,
    grants=5,
)
GAUGES = Gauges(
    queued=7,
    max_queued=10,
    oldest_wait_s=1.5,
    expecting=1,
    placed_total=1,
    bounced_total=0,
    busy_total=0,
    replicas=(
        REPLICA,
        replace(REPLICA, replica="r2", suspect=True),
        replace(REPLICA, replica="r3", suspect=True, leaving=True),
    ),
)


def some() -> Counts:
    counts = Counts()
    counts.add("request_success_total", 2, (("finished_reason", "stop"),))
    counts.add("prompt_tokens_total", 40)
    counts.observe("time_to_first_token_seconds", 0.02)
    counts.observe("time_to_first_token_seconds", 1e9)
    counts.observe("inter_token_latency_seconds", 0.01, times=3)
    counts.observe("request_queue_time_seconds", 0.3, priority_class(5))
    return counts


Samples: TypeAlias = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def render(
    counts: Counts, model: str = "m", prefix: str = "tidegate:", *, vllm: bool = False
) -> Samples:
    vitals = {"r1": Vitals(True, 4, 50, 1, 80, 30, 60, 2)}
    page = Page(model, vllm=vllm).render(counts, GAUGES, vitals, {"r1": 9})
    families = list(text_string_to_metric_families(page))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            if sample.name.startswith(prefix):
                at = (sample.name.removeprefix(prefix), tuple(sorted(sample.labels.items())))
                assert at not in found
                found[at] = sample.value
    return found


def test_the_page_is_valid_and_says_what_was_counted() -> None:
    page = render(some())
    model = ("model_name", "m")
    assert page[("request_success_total", (("finished_reason", "stop"), model))] == 2
    assert page[("num_requests_waiting", (model, ("replica", "router")))] == 7
    assert page[("num_requests_waiting", (model, ("replica", "r1")))] == 2
    assert page[("kv_cache_usage_perc", (model, ("replica", "r1")))] == 0.6
    assert page[("num_preemptions_total", (model, ("replica", "r1")))] == 4
    assert page[("num_admission_preemptions_total", (model, ("replica", "r1")))] == 1
    assert page[("prefix_cache_queries_total", (model, ("replica", "r1")))] == 80
    assert page[("prefix_cache_hits_total", (model, ("replica", "r1")))] == 30
    assert page[("restored_tokens_total", (model, ("replica", "r1")))] == 60
    assert page[("gap_admissions_total", (model, ("replica", "r1")))] == 2
    assert page[("requests_placed_total", (model, ("replica", "r1")))] == 9
    assert page[("kv_blocks", (model, ("replica", "r1")))] == 10
    assert page[("kv_blocks_free", (model, ("replica", "r1")))] == 4
    assert page[("time_to_first_token_seconds_count", (model,))] == 2
    assert page[("time_to_first_token_seconds_bucket", (("le", "120.0"), model))] == 1
    assert page[("time_to_first_token_seconds_bucket", (("le", "+Inf"), model))] == 2
    assert page[("inter_token_latency_seconds_count", (model,))] == 3
    waited = ("request_queue_time_seconds_count", (model, ("priority_class", "high")))
    assert page[waited] == 1
    states = {"serving": 1, "leaving": 1, "suspect": 1}
    assert {s: page[("num_replicas", (model, ("state", s)))] for s in states} == states


def test_every_family_is_there_before_anything_was_counted() -> None:
    page = Page("m").render(Counts(), GAUGES, {}, {})
    for name in (*COUNTERS, *HISTOGRAMS):
        assert f"# TYPE tidegate:{name} " in page


def test_what_can_be_known_beforehand_has_a_zero_so_that_its_first_event_has_a_rate() -> None:
    before = {at for at, value in render(Counts()).items() if value == 0}
    after = {at for at, value in render(some()).items() if value}
    late = {name for name, _ in after - before}
    # These were not 0 before: gauges, and the replicas' own.
    assert not {name for name in late if name.startswith(("request_s", "prompt", "time_to", "int"))}
    assert ("request_success_total", (("finished_reason", "stop"), ("model_name", "m"))) in before


# ---- vLLM's names ---------------------------------------------------------------------------


def test_vllm_names_are_said_only_when_asked_for() -> None:
    assert render(some(), prefix="vllm:") == {}
    assert render(some(), vllm=True) == render(some())


def test_every_vllm_name_is_there_with_the_labels_that_its_dashboards_ask_for() -> None:
    page = render(some(), prefix="vllm:", vllm=True)
    model = ("model_name", "m")
    names = {name for name, _ in page}
    for name in VLLM_NAMES:
        assert names & {name, f"{name}_bucket"}, name
    assert page[("num_requests_running", (("engine", "r1"), model))] == 3
    assert page[("num_requests_waiting", (("engine", "router"), model))] == 7
    assert page[("kv_cache_usage_perc", (("engine", "r1"), model))] == 0.6
    assert page[("prefix_cache_hits_total", (("engine", "r1"), model))] == 30
    assert page[("request_success_total", (("finished_reason", "stop"), model))] == 2
    assert page[("prompt_tokens_total", (model,))] == 40
    # No label that its dashboards do not know splits what they show as one line.
    for name, labels in page:
        assert {key for key, _ in labels} <= {"model_name", "engine", "finished_reason", "le"}, name


def test_a_vllm_histogram_has_all_our_buckets_and_all_our_observations() -> None:
    counts = some()
    counts.observe("request_queue_time_seconds", 40.0, priority_class(0))
    counts.observe("request_queue_time_seconds", 0.3, priority_class(-1))
    ours, theirs = render(counts), render(counts, prefix="vllm:", vllm=True)
    for name, (bounds, _) in HISTOGRAMS.items():
        for suffix in ("_sum", "_count"):
            assert total(theirs, name + suffix) == total(ours, name + suffix)
        for bound in (*map(str, bounds), "+Inf"):
            at = (f"{name}_bucket", (("le", bound), ("model_name", "m")))
            same = sum(
                value
                for (other, labels), value in ours.items()
                if other == at[0] and ("le", bound) in labels
            )
            assert theirs[at] == same, at


def total(page: Samples, name: str) -> float:
    return sum(value for (other, _), value in page.items() if other == name)


async def test_counters_go_up_while_replicas_come_go_and_are_overtaken_by_their_own_reports() -> (
    None
):
    fleet = Fleet()
    history = [
        ("r1", Vitals(True, 5, 100, 2)),
        ("r2", Vitals(True, 1, 10)),
        ("r1", Vitals(True, 9, 300, 4, 90, 50, 70, 6)),
        ("r1", Vitals(True, 7, 200, 3, 80, 40, 60, 5)),  # this one was under way for longer
        ("r2", Vitals(True, 4, 40)),
        (None, Vitals(True, 0, 0)),
        ("r3", Vitals(True, 0, 0)),
        ("r3", Vitals(True, 2, 20)),
    ]
    before: Samples = {}
    for replica, vitals in history:
        if replica is None:
            await fleet.router.lost("r1", certain=True)
        else:
            await fleet.report(replica, vitals=vitals)
        now = page_of(fleet)
        for at, value in now.items():
            assert value >= before.get(at, 0), at
        before = now
    # What each did from its first report here on: a router that is new missed what came before.
    all_replicas = (("model_name", "m"),)
    assert before[("vllm:num_preemptions_total", all_replicas)] == 4 + 3 + 2
    one = (("model_name", "m"), ("replica", "r2"))
    assert before[("tidegate:num_preemptions_total", one)] == 4


@pytest.mark.parametrize("shown", [True, False])
async def test_tenants_are_named_unless_that_is_switched_off(shown: bool) -> None:
    fleet = Fleet(tenant_metrics=shown)
    counts = Counts()
    counts.add("tenant_tokens_total", 7, (("tenant", "search"),))
    await fleet.router.count(counts)
    page = await fleet.router.metrics("m")
    assert ('tenant="search"' in page) is ("tenant_tokens_total" in page) is shown


def page_of(fleet: Fleet) -> Samples:
    """All counters of a router's page."""
    router = fleet.router
    page = Page("m", vllm=True).render(
        router._counts, router._core.gauges(), router._vitals(), router._placed
    )
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.type in ("counter", "histogram")
    }


def test_preemptions_of_all_replicas_do_not_fall_when_one_is_replaced() -> None:
    counts = Counts()
    counts.preempted(Vitals(True, 3, 0), Vitals(True, 7, 0))
    counts.preempted(Vitals(True, 7, 0), Vitals(True, 7, 0))
    page = render(counts, prefix="vllm:", vllm=True)
    assert page[("num_preemptions_total", (("model_name", "m"),))] == 4
    assert total(render(counts), "num_preemptions_total") == 4


def test_gateways_add_up_in_any_order_and_nothing_counts_twice() -> None:
    one, other, total = some(), some(), Counts()
    other.add("request_errors_total")
    for counts in (one, other):
        total.merge(pickle.loads(pickle.dumps(counts.take())))
        assert not counts
    total.merge(one.take())
    page = render(total)
    model = ("model_name", "m")
    assert page[("prompt_tokens_total", (model,))] == 80
    assert page[("request_errors_total", (model,))] == 1
    assert page[("time_to_first_token_seconds_count", (model,))] == 4
    assert page[("time_to_first_token_seconds_bucket", (("le", "120.0"), model))] == 2


def test_a_model_name_may_hold_anything() -> None:
    page = render(Counts(), 'a"b\\c\nd')
    assert ("request_errors_total", (("model_name", 'a"b\\c\nd'),)) in page

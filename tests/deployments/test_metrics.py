"""What is counted adds up, and the page is one that Prometheus reads."""

import pickle
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from deployments.messages import Vitals
from deployments.metrics import COUNTERS, HISTOGRAMS, Counts, Page, priority_class
from router.gauges import Gauges, ReplicaGauges

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


def render(
    counts: Counts, model: str = "m"
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = Page(model).render(counts, GAUGES, {"r1": Vitals(True, 4, 50)}, {"r1": 9})
    families = list(text_string_to_metric_families(page))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return {
        (sample.name.removeprefix("tidegate:"), tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_page_is_valid_and_says_what_was_counted() -> None:
    page = render(some())
    model = ("model_name", "m")
    assert page[("request_success_total", (("finished_reason", "stop"), model))] == 2
    assert page[("num_requests_waiting", (model, ("replica", "router")))] == 7
    assert page[("num_requests_waiting", (model, ("replica", "r1")))] == 2
    assert page[("kv_cache_usage_perc", (model, ("replica", "r1")))] == 0.6
    assert page[("num_preemptions_total", (model, ("replica", "r1")))] == 4
    assert page[("requests_placed_total", (model, ("replica", "r1")))] == 9
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

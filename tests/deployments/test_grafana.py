"""Every figure that the Grafana dashboard asks for is one that the metrics page has."""

import json
import re
import time
from importlib.resources import files
from itertools import combinations
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments import grafana
from deployments.exposition import Page
from deployments.messages import Vitals
from deployments.metrics import HISTOGRAMS, Counts
from router.core import RouterConfig, RouterCore
from tests.deployments.watched import Deployment, busy

BOARD: dict[str, Any] = json.loads(files(grafana).joinpath("tidegate.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
RANGE = r"\[(?:\$__rate_interval|\d+[smh])\]"


def samples() -> dict[str, set[str]]:
    """The labels of each name on a page on which every family has a sample."""
    deployment = Deployment()
    busy(deployment)
    counts = Counts()
    counts.add("tenant_tokens_total", 1, (("tenant", "search"),))
    gauges = deployment.core.gauges()
    placed = dict.fromkeys(deployment.vitals, 1)
    page = Page("m").render(counts, gauges, deployment.vitals, placed)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


SAMPLES = samples()


def expressions() -> list[tuple[str, str]]:
    return [(panel["title"], one["expr"]) for panel in GRAPHS for one in panel["targets"]]


def selectors(expression: str) -> list[tuple[str, str]]:
    """Each metric of an expression, with what stands in its braces."""
    return re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression)


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_an_expression_asks_for_what_there_is(title: str, expression: str) -> None:
    found = selectors(expression)
    assert found
    # Nothing is asked for without the model's name, and nothing by another's prefix.
    assert len(re.findall(r"\b\w+:\w+", expression)) == len(found)
    labels: set[str] = set()
    for name, inside in found:
        assert name.startswith("tidegate:")
        assert name in SAMPLES, name
        matched = re.findall(r'(\w+)\s*=~?\s*"', inside)
        assert "model_name" in matched
        assert set(matched) <= SAMPLES[name], name
        labels |= SAMPLES[name]
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels, title


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_counters_are_shown_as_rates_and_gauges_as_they_are(title: str, expression: str) -> None:
    for name, inside in selectors(expression):
        counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
        of = re.escape(f"{name}{{{inside}}}")
        rated = re.search(rf"\b(rate|increase)\({of}{RANGE}\)", expression)
        assert bool(rated) == counts, title


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_brackets_are_closed_and_quantiles_keep_their_buckets(title: str, expression: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), title
    quantiles = re.findall(r"histogram_quantile\(([\d.]+), sum by \(le\b", expression)
    assert len(quantiles) == expression.count("histogram_quantile")
    assert all(0 < float(share) < 1 for share in quantiles)


def test_legends_name_labels_that_are_left() -> None:
    for panel in GRAPHS:
        for target in panel["targets"]:
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            left = {label.strip() for group in grouped for label in group.split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, panel["title"]


def test_everything_on_the_metrics_page_is_shown() -> None:
    gauges = RouterCore(RouterConfig(), time.monotonic, Random(0)).gauges()
    page = Page("m").render(Counts(), gauges, {"r": Vitals(True, 0, 0)}, {})
    families = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    shown = {name for _, expression in expressions() for name, _ in selectors(expression)}
    shown = {name.removesuffix("_bucket") for name in shown}
    assert shown == families
    assert {f"tidegate:{name}" for name in HISTOGRAMS} <= shown


def test_it_is_a_dashboard_that_grafana_takes() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    assert "id" not in BOARD  # Grafana gives one
    assert (BOARD["title"], BOARD["uid"]) == ("Tidegate", "tidegate")
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    asked = re.fullmatch(r"label_values\((\S+), (\w+)\)", variables["model_name"]["query"]["query"])
    assert asked is not None
    assert asked[2] in SAMPLES[asked[1]]
    for panel in GRAPHS:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
        for source in (panel["datasource"], *(one["datasource"] for one in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}


def test_no_two_panels_overlap_and_rows_stand_above_their_own() -> None:
    for panel in PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        assert place["h"] >= 1
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    order = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in PANELS]
    assert order == sorted(order)

"""Two figures of each variant against each other."""

from itertools import combinations

from experiments.studies.findings import Findings
from experiments.studies.measure import Measure
from experiments.studies.tradeoff import Family, tradeoff
from tests.experiments.report.drawn import cut_dots, figure_of, text_boxes


def test_a_dot_at_nothing_is_whole() -> None:
    measures = [
        Measure("missed", "missed", "%", lambda run: None, 100.0),
        Measure("hours", "replica-hours", "", lambda run: None),
    ]
    findings = Findings(measures)
    for variant, hours, missed in (("2 replicas", 0.0, 0.3), ("4 replicas", 4.0, 0.0)):
        findings.add("load", variant, {"hours": hours, "missed": missed})
    family = Family("fixed", ["2 replicas", "4 replicas"])
    plot = tradeoff(findings, "name", "Title", [family], ["load"], ("hours", "missed"))
    assert cut_dots(plot) == []


def test_variants_of_a_family_that_lie_together_have_one_label() -> None:
    """Guards against: "1 s" written over "4 s", since both policies did much the same."""
    measures = [Measure("x", "x", "", lambda run: None), Measure("y", "y", "", lambda run: None)]
    findings = Findings(measures)
    variants = [f"wait {i} s" for i in range(1, 5)]
    for i, variant in enumerate(variants):
        findings.add("load", variant, {"x": 5.0 + i / 50, "y": 10.0 + i / 10})
    findings.add("load", "wait 90 s", {"x": 9.0, "y": 2.0})
    family = Family("wait", [*variants, "wait 90 s"])
    plot = tradeoff(findings, "name", "Title", [family], ["load"], ("x", "y"))
    (axes,) = figure_of(plot).axes
    assert sorted(text.get_text() for text in axes.texts) == ["1 s, 2 s, 3 s, 4 s", "90 s"]


def test_families_that_meet_have_labels_of_their_own() -> None:
    measures = [Measure("x", "x", "", lambda run: None), Measure("y", "y", "", lambda run: None)]
    findings = Findings(measures)
    for i, variant in enumerate(["wait 1 s", "ttft 1 s", "wait 20 s", "ttft 20 s"]):
        findings.add("load", variant, {"x": 5.0 + i // 2 * 4, "y": 10.0 + i / 10})
    findings.add("load", "fixed", {"x": 12.0, "y": 12.0})
    families = [
        Family("wait", ["wait 1 s", "wait 20 s"]),
        Family("ttft", ["ttft 1 s", "ttft 20 s"]),
        Family("fixed", ["fixed"]),
    ]
    boxes = text_boxes(tradeoff(findings, "name", "Title", families, ["load"], ("x", "y")))
    assert len(boxes) == 4
    assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]

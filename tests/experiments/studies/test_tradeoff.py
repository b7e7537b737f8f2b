"""Two figures of each variant against each other."""

from experiments.studies.findings import Findings
from experiments.studies.measure import Measure
from experiments.studies.tradeoff import Family, tradeoff
from tests.experiments.report.drawn import cut_dots


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

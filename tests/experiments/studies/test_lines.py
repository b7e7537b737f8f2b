"""Lines over what settings vary."""

from experiments.studies.findings import Findings
from experiments.studies.lines import Panel, lines
from experiments.studies.measure import Measure
from tests.experiments.report.drawn import cut_dots


def test_a_dot_at_nothing_is_whole() -> None:
    findings = Findings([Measure("missed", "missed", "%", lambda run: None, 100.0)])
    for setting, value in (("50%", 0.0), ("80%", 0.0), ("90%", 0.2)):
        findings.add(setting, "one", {"missed": value})
    panel = Panel("missed, %", "missed", [("50%", 50), ("80%", 80), ("90%", 90)], "load, %")
    assert cut_dots(lines(findings, "name", "Title", [panel])) == []

"""Several seeds become a median and a range; what no run had is a dash."""

from experiments.studies.findings import Findings
from experiments.studies.measure import Measure
from experiments.studies.tables import ratios, table

MEASURES = [
    Measure("a", "first", "ms", lambda run: 0.0, 1000.0),
    Measure("b", "second", "", lambda run: None),
]


def found() -> Findings:
    findings = Findings(MEASURES)
    for value in (0.003, 0.001, 0.010):
        findings.add("x, 1%", "one", {"a": value, "b": None})
        findings.add("x, 1%", "two", {"a": 0.002, "b": 5.0})
        findings.add("x, 2%", "one", {"a": value, "b": value})
    return findings


def test_ranges_are_over_seeds() -> None:
    one = found().range("x, 1%", "one", "a")
    assert one is not None
    assert (one.middle, one.low, one.high) == (0.003, 0.001, 0.010)
    assert found().range("x, 1%", "one", "b") is None
    assert found().range("x, 3%", "one", "a") is None


def test_settings_and_variants_keep_their_order() -> None:
    assert found().settings == ["x, 1%", "x, 2%"]
    assert found().variants("x, 1%") == ["one", "two"]
    assert found().variants("x, 2%") == ["one"]


def test_a_table_has_a_row_for_each_variant_in_each_setting() -> None:
    made = table(found(), "T", ["x, 1%", "x, 2%"], ["a", "b"], ("load", "rule"))
    assert [column.head for column in made.columns] == ["load", "rule", "first, ms", "second"]
    assert made.rows == [
        ["x, 1%", "one", "3.00 (1.00 to 10)", "-"],
        ["", "two", "2.00", "5.00"],
        ["x, 2%", "one", "3.00 (1.00 to 10)", "0.003 (0.001 to 0.010)"],
    ]


def test_ratios_are_of_the_same_seed() -> None:
    ratio = found().ratio("x, 1%", "one", "two", "a")
    assert ratio is not None
    assert (ratio.middle, ratio.low, ratio.high) == (1.5, 0.5, 5.0)
    assert found().ratio("x, 1%", "one", "two", "b") is None


def test_a_table_of_ratios_leaves_out_what_it_compares_with() -> None:
    made = ratios(found(), "T", ["x, 1%"], ["a"], "two", ("load", "rule"))
    assert made.rows == [["x, 1%", "one", "1.50 (0.500 to 5.00)"]]

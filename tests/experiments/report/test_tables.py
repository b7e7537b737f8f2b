"""Tables: each says what it should of a run whose figures are known."""

from dataclasses import replace

from experiments.report import tables
from experiments.report.summary import summarise
from experiments.report.table import Table
from experiments.report.targets import Targets
from experiments.simulator.outcome import Run
from tests.experiments.report.runs import answered, run

TARGETS = Targets(1.0, None)


def cells(table: Table | None) -> dict[tuple[str, ...], dict[str, str]]:
    """Each row by its words, its numbers by their heads."""
    assert table is not None
    assert all(len(row) == len(table.columns) for row in table.rows)
    words = [i for i, column in enumerate(table.columns) if column.text]
    return {
        tuple(row[i] for i in words): {
            column.name: cell for column, cell in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    }


def test_the_overview() -> None:
    (row,) = cells(tables.overview([summarise(run(), TARGETS)], TARGETS)).values()
    assert (row["Requests"], row["Answered"], row["On target"]) == ("4", "50.0%", "25.0%")
    assert (row["TTFT p50"], row["TPOT p50"], row["Tokens/s"]) == ("0.500", "20.0", "1.20")
    assert (row["Replica-hours"], row["Busy"]) == ("0.006", "25.0%")


def test_why_requests_were_not_answered() -> None:
    """Guards against: "50% answered", and no word of why."""
    outcomes = [*run().outcomes]
    outcomes += [replace(outcomes[2], index=i) for i in range(4, 6)]
    table = tables.reasons([summarise(run(outcomes=outcomes), TARGETS)])
    assert table is not None
    assert table.rows == [
        ["a run", "refused", "3", "50.0%", "rate_limit_error/queue_full"],
        ["a run", "failed", "1", "16.7%", "-"],
    ]
    fine = run(outcomes=outcomes[:2])
    assert tables.reasons([summarise(fine, TARGETS)]) is None


def test_of_many_reasons_the_most_frequent_are_shown() -> None:
    outcomes = [replace(run().outcomes[2], index=i, reason=f"r{i % 25:02}") for i in range(49)]
    table = tables.reasons([summarise(run(outcomes=outcomes), TARGETS)])
    assert table is not None
    assert [row[-1] for row in table.rows] == [f"r{i:02}" for i in range(20)]
    assert "5 more" in table.note


def test_what_a_live_server_does_not_tell_is_no_number() -> None:
    (row,) = cells(tables.requests([summarise(run(kind="measured"), TARGETS)])).values()
    assert row["Moved"] == "-"


def test_times_say_their_unit() -> None:
    found = cells(tables.latencies([summarise(run(), TARGETS)]))
    assert found["a run", "to first token, s"]["Max"] == "3.00"
    assert found["a run", "per output token, ms"]["p50"] == "20.0"


def test_groups_are_shown_where_there_are_several() -> None:
    found = cells(tables.by_priority([summarise(run(), TARGETS)]))
    assert found["a run", "5"]["On target"] == "100%"
    assert found["a run", "0"]["max"] == "3.00"
    alike = run(outcomes=[answered(0, 0.0, 1.0, 0.1)])
    assert tables.by_priority([summarise(alike, TARGETS)]) is None


def test_of_many_tenants_the_busiest_are_shown() -> None:
    outcomes = [answered(i, i, 0.1, 0.1, tenant=f"t{i}") for i in range(25)]
    outcomes.append(answered(25, 25.0, 0.1, 0.1, tenant="t24"))
    table = tables.by_tenant([summarise(run(outcomes=outcomes), TARGETS)])
    assert table is not None
    assert len(table.rows) == 20
    assert table.rows[0][1] == "t24"
    assert "5 more" in table.note


def test_settings_are_parted_into_what_is_shared_and_what_is_not() -> None:
    runs = [run("one"), run("two", settings={"replicas": 4, "policy": None})]
    common, differ = tables.settings(runs)
    assert common.rows == [["policy", "-"]]
    assert differ is not None
    assert differ.rows == [["one", "2", "on", "0.0005"], ["two", "4", "-", "-"]]
    assert tables.settings(runs[:1])[1] is None


def test_counts_that_only_one_run_has() -> None:
    runs: list[Run] = [run("one"), run("two", counts={"steps": 1})]
    found = cells(tables.counts([summarise(one, TARGETS) for one in runs]))
    assert found["preemptions",] == {"Count": "preemptions", "one": "3", "two": "-"}
    nothing = run(counts={})
    assert tables.counts([summarise(nothing, TARGETS)]) is None

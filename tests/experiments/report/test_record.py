"""Records: what is read back is what was written, in both formats, for any run."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from experiments.report.needs import MissingLibrary, Rows
from experiments.report.record import RecordError, read_runs, write_record
from experiments.simulator.outcome import Run
from tests.experiments.report.runs import NASTY, run, some_runs

BOTH: tuple[Rows, ...] = ("csv", "parquet")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Rows, Path]:
    return {format: tmp_path_factory.mktemp(format) for format in BOTH}


@settings(max_examples=25)
@given(some_runs())
def test_what_is_read_back_is_what_was_written(folders: dict[Rows, Path], runs: list[Run]) -> None:
    for format, folder in folders.items():
        write_record(runs, folder, [format])
        assert read_runs(folder) == runs


@pytest.mark.parametrize("format", BOTH)
def test_letters_of_any_kind_come_back(format: Rows, tmp_path: Path) -> None:
    runs = [run(NASTY + '\r\n\r",; '), run("")]
    write_record(runs, tmp_path, [format])
    assert read_runs(tmp_path) == runs


def test_both_formats_hold_the_same(tmp_path: Path) -> None:
    import polars

    write_record([run("one"), run("two")], tmp_path, BOTH)
    for name in ("outcomes", "samples"):
        rows = polars.read_parquet(tmp_path / f"{name}.parquet")
        same = polars.read_csv(tmp_path / f"{name}.csv", schema=rows.schema)
        # CSV cannot tell an empty text from none.
        assert same.with_columns(polars.col(polars.String).fill_null("")).rows() == rows.rows()
    assert (rows.height, rows["run"].unique().sort().to_list()) == (6, ["one", "two"])


def test_each_runs_own_facts_are_in_json(tmp_path: Path) -> None:
    write_record([run()], tmp_path, ["csv"])
    (found,) = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))
    assert found["settings"] == {"replicas": 2, "policy": None, "overlap": True, "network_s": 5e-4}
    assert (found["seconds"], found["counts"]["steps"]) == (10.0, 1234.0)


# ---- what is wrong -----------------------------------------------------------------------------


def test_a_folder_without_a_report(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"runs\.json is missing"):
        read_runs(tmp_path)


def test_a_report_without_rows(tmp_path: Path) -> None:
    write_record([run()], tmp_path, [])
    with pytest.raises(RecordError, match=r"outcomes\.csv is missing, and so is outcomes\.parquet"):
        read_runs(tmp_path)


@pytest.mark.parametrize(("old", "new"), [
    ("a run,1,", "a run,one,"), ("a run,1,", "another run,1,"), ("a run,1,", "a run,"),
])  # fmt: skip
def test_a_broken_row_is_named(old: str, new: str, tmp_path: Path) -> None:
    write_record([run()], tmp_path, ["csv"])
    file = tmp_path / "outcomes.csv"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(RecordError, match=r"outcomes\.csv, row 2: "):
        read_runs(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"name": "a run"}]'])
def test_a_broken_list_of_runs(text: str, tmp_path: Path) -> None:
    write_record([run()], tmp_path, ["csv"])
    (tmp_path / "runs.json").write_text(text)
    with pytest.raises(RecordError, match=r"runs\.json|outcomes\.csv, row 1"):
        read_runs(tmp_path)


def test_parquet_alone_needs_what_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record([run()], tmp_path, ["parquet"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match=r"tidegate\[experiments\]"):
        read_runs(tmp_path)

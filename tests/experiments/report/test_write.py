"""A report in a folder: the same bytes for the same runs, and a page that stands alone."""

import re
import shutil
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments.report import gallery, write
from experiments.report.compare import compare
from experiments.report.needs import Format, MissingLibrary, require
from experiments.report.record import read_runs
from experiments.report.targets import Targets
from experiments.report.write import write_report
from experiments.simulator.outcome import Run
from tests.experiments.report.runs import NASTY, answered, run, sample

EVERYTHING: tuple[Format, ...] = ("csv", "parquet", "png", "svg", "html")


def runs() -> list[Run]:
    return [run(NASTY, load=NASTY, settings={NASTY: NASTY}), run("measured", kind="measured")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    one, other = runs()
    files = write_report(
        [one, other], folder, formats=EVERYTHING, comparisons=[compare(one, other)], command=NASTY
    )
    assert all(file.is_file() for file in files)
    assert sorted(files) == sorted(file for file in folder.rglob("*") if file.is_file())
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_same_runs_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    one, other = runs()
    again = write_report(
        [one, other], tmp_path, formats=EVERYTHING, comparisons=[compare(one, other)], command=NASTY
    )
    for file in again:
        assert file.read_bytes() == (folder / file.relative_to(tmp_path)).read_bytes(), file


def test_every_plot_is_a_file(folder: Path) -> None:
    names = {"cost", "ttft", "ttft-by-priority", "ttft-over-time", "fleet"}
    names |= {"compared-ttft", "compared-tpot", "compared-requests"}
    for ending in ("png", "svg"):
        assert {file.stem for file in folder.glob(f"plots/*.{ending}")} == names
    for file in folder.glob("plots/*.svg"):
        # Whole XML, with the run's name as it is; and nothing of when it was drawn.
        text = file.read_text(encoding="utf-8")
        root = xml.etree.ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert "<dc:date>" not in text
        if file.stem == "ttft":
            drawn = "".join(root.itertext())
            assert "$a_b$ <script" in drawn  # as it is: no formula, no markup
            assert "alert('&')" in drawn


class _Reader(HTMLParser):
    """Notes every tag, every address and every id."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[str | None] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "svg" and found.get("aria-hidden") != "true":
            self.pictures.append(found.get("aria-label"))
        for name, value in attributes:
            if name in {"href", "xlink:href", "src", "srcset", "data", "action"}:
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_needs_nothing_else(page: str, read: _Reader) -> None:
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert all(address.startswith("#") for address in read.addresses)
    assert not re.search(r"url\((?!#)|@import", page)
    # The only address is in the name of a run.
    assert page.count("http") == page.count("http://x/y.js")


def test_what_the_page_refers_to_is_there_once(page: str, read: _Reader) -> None:
    assert len(read.ids) == len(set(read.ids))
    wanted = {address[1:] for address in read.addresses} | set(re.findall(r"url\(#(\w+)\)", page))
    assert wanted <= set(read.ids)


def test_names_cannot_become_part_of_the_page(page: str) -> None:
    assert "<script" not in page
    assert "\x07" not in page
    assert "&lt;script src=" in page


def test_every_picture_says_what_it_shows(read: _Reader) -> None:
    assert len(read.pictures) == 2 + 3 + 3 * 2
    assert all(read.pictures)
    assert any("half within 0.500 s" in (said or "") for said in read.pictures)


def test_why_requests_were_refused_is_on_the_page(page: str) -> None:
    assert page.count("<td>rate_limit_error/queue_full</td>") == 2


def test_the_page_says_that_runs_are_missing(page: str, tmp_path: Path) -> None:
    assert "interrupted" not in page
    write_report([run()], tmp_path, formats=["html"], missing=3)
    assert "1 run; interrupted before 3 more" in (tmp_path / "report.html").read_text("utf-8")


def test_only_what_a_server_tells_is_drawn_of_it(tmp_path: Path) -> None:
    for kind, times in (("simulated", 1), ("measured", 0)):
        write_report([run(kind=kind)], tmp_path, formats=["svg"])
        assert (tmp_path / "plots" / "fleet.svg").read_text("utf-8").count(">wanted<") == times


def test_colours_follow_the_page(page: str) -> None:
    drawn = page[page.index("<body>") :]
    assert "var(--series-1)" in drawn
    assert not re.search(r"(fill|stroke): ?#", drawn)


@pytest.mark.parametrize("odd", [
    run(outcomes=[], samples=[], seconds=0.0, replica_s=0.0, busy_s=0.0, counts={}, settings={}),
    run(outcomes=[answered(0, 0.0, 0.0, 0.0)], samples=[sample(0.0, total_blocks=0)]),
    run(outcomes=[answered(i, 0.0, 1.0, 0.1, priority=i) for i in range(9)], seconds=1e7),
], ids=["nothing", "no time", "many priorities, for months"])  # fmt: skip
def test_odd_runs_are_drawn_too(odd: Run, tmp_path: Path) -> None:
    write_report([odd], tmp_path, formats=["html"], targets=Targets(None, None))
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_more_runs_than_are_drawn_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "MOST_RUNS", 1)
    many = [run(f"run {i}", replica_s=float(i), outcomes=[], samples=[]) for i in range(4)]
    write_report(many, tmp_path, formats=["html"])
    assert "3 more are in the tables only" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("format", ["csv", "parquet", "html"])
def test_nothing_of_an_earlier_report_stays(folder: Path, tmp_path: Path, format: Format) -> None:
    """Guards against: rows or plots of other runs that are taken for those of this report."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "plots" / "compared-ttft-2.svg").touch()  # of a report with two comparisons
    mine = [tmp_path / "notes.csv", tmp_path / "plots" / "mine.png"]
    for file in mine:
        file.touch()
    files = write_report([run(NASTY, outcomes=[])], tmp_path, formats=[format])
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {*files, *mine}
    if format != "html":
        assert [len(run.outcomes) for run in read_runs(tmp_path)] == [0]


# ---- what is wrong -----------------------------------------------------------------------------


def test_runs_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice: a run"):
        write_report([run(), run()], tmp_path)
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path)


def test_a_missing_library_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for format, library in (("html", "matplotlib"), ("parquet", "polars")):
        with pytest.raises(
            MissingLibrary, match=f"{format} needs {library}: .*tidegate.experiments"
        ):
            write_report([run()], tmp_path / "new", formats=[format])
    assert not (tmp_path / "new").exists()


def test_csv_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require(["csv"])
    files = write_report([run()], tmp_path, formats=["csv"])
    assert [file.name for file in files] == [
        "runs.json",
        "outcomes.csv",
        "samples.csv",
        "summary.csv",
    ]


def test_the_defaults_can_be_written() -> None:
    assert set(write.DEFAULT_FORMATS) <= set(EVERYTHING)

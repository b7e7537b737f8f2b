"""Study: a question, the runs that answer it, and how the answer is shown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.loads.load import Load
from experiments.report.drawing import Plot
from experiments.report.table import Table
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.measure import Measure


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that a study reads.

    Attributes:
        name: of its part in the study.
        what: which trace is meant.
        stand_in: the spec of a load that takes its place in a quick run.
    """

    name: str
    what: str
    stand_in: str


@dataclass(frozen=True, slots=True)
class Given:
    """What a study is run with.

    Attributes:
        loads: by the trace's name.
        seeds: so many runs of each variant in each setting, >= 1.
        quick: a small fleet and a short load, to see that it works.
    """

    loads: Mapping[str, Load]
    seeds: int
    quick: bool


@dataclass(frozen=True, slots=True)
class Study:
    """A question.

    Attributes:
        name: of the command, and of the page.
        title: of the page.
        traces: that it reads, in the order in which the command line gives them.
        measures: what is read off each run.
        cases: the runs, made one after the other; those of one setting and variant differ in
            their seeds. Two calls with equal arguments give equal cases.
        tables: what is shown, by a name that is the table's place in the page.
        plots: likewise; their names are those of the files.
    """

    name: str
    title: str
    traces: Sequence[Trace]
    measures: Sequence[Measure]
    cases: Callable[[Given], Iterator[Case]]
    tables: Callable[[Findings], Mapping[str, Table]]
    plots: Callable[[Findings], Sequence[Plot]]

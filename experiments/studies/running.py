"""Running a study: its cases one after the other, of which only the figures stay."""

from collections.abc import Callable
from dataclasses import replace

from experiments.simulator.outcome import Run
from experiments.simulator.simulation import simulate
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.study import Given, Study


def find(study: Study, given: Given, say: Callable[[str], None] = lambda _: None) -> Findings:
    """Run all cases of a study; equal arguments give equal findings.

    Args:
        study: which.
        given: with what.
        say: gets a line about each run that is done.

    Raises:
        ValueError: a case cannot be had from what is given.
    """
    findings = Findings(study.measures)
    for i, case in enumerate(study.cases(given), 1):
        run = _counted(simulate(case.scenario, case.load, case.step_time), case)
        figures = {measure.key: measure.of(run) for measure in study.measures}
        findings.add(case.setting, case.variant, figures)
        say(f"{i}: {case.setting}; {case.variant}; seed {case.scenario.seed}")
    return findings


def _counted(run: Run, case: Case) -> Run:
    """Return the run with only those requests that count."""
    if not case.warm_s:
        return run
    return replace(run, outcomes=[one for one in run.outcomes if one.at >= case.warm_s])

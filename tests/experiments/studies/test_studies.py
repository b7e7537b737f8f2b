"""Each study, quick: all variants are there, and twice is the same."""

import pytest

from experiments.studies.command import loads_of
from experiments.studies.known import STUDIES
from experiments.studies.running import find
from experiments.studies.study import Given, Study


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_a_quick_run_shows_every_variant_and_twice_the_same(study: Study) -> None:
    given = Given(loads_of(study, [], quick=True), 1, quick=True)
    findings = find(study, given)
    tables = study.tables(findings)
    shown = {cell for table in tables.values() for row in table.rows for cell in row}
    for setting in findings.settings:
        assert set(findings.variants(setting)) <= shown
        assert any(findings.range(setting, one, study.measures[0].key)
                   for one in findings.variants(setting))  # fmt: skip
    assert all(table.rows for table in tables.values())
    assert study.plots(findings)
    assert study.tables(find(study, given)) == tables


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_names_do_not_collide(study: Study) -> None:
    keys = [measure.key for measure in study.measures]
    assert len(keys) == len(set(keys))

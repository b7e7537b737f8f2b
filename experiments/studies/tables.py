"""Tables of findings."""

from collections.abc import Sequence
from typing import Final

from experiments.report.table import Column, Table
from experiments.report.texts import NOTHING
from experiments.studies.findings import Findings

_NOTE: Final = "Medians over seeds, and in brackets the smallest and the largest."


def table(
    findings: Findings,
    title: str,
    settings: Sequence[str],
    keys: Sequence[str],
    heads: tuple[str, str],
) -> Table:
    """Return a row for each setting and variant, and a column for each measure.

    Args:
        findings: where the figures are.
        title: what it shows.
        settings: which; in this order.
        keys: of the measures, from left to right.
        heads: of the first two columns, setting and variant.
    """
    measures = {measure.key: measure for measure in findings.measures}
    columns = [Column(head, text=True) for head in heads]
    columns += [Column(measures[key].head, measures[key].unit) for key in keys]
    rows: list[list[str]] = []
    for setting in settings:
        for i, variant in enumerate(findings.variants(setting)):
            # Said once for all rows of a setting.
            row = ["" if i else setting, variant]
            for key in keys:
                found = findings.range(setting, variant, key)
                row.append(NOTHING if found is None else found.text(measures[key].shown))
            rows.append(row)
    return Table(title, columns, rows, _NOTE)


def ratios(
    findings: Findings,
    title: str,
    settings: Sequence[str],
    keys: Sequence[str],
    to: str,
    heads: tuple[str, str],
) -> Table:
    """Return a row for each setting and variant: its figures as multiples of one variant's.

    Args:
        findings: where the figures are.
        title: what it shows.
        settings: which; in this order.
        keys: of the measures, from left to right.
        to: the variant that the others are compared with; it has no row.
        heads: of the first two columns, setting and variant.
    """
    measures = {measure.key: measure for measure in findings.measures}
    columns = [Column(head, text=True) for head in heads]
    columns += [Column(measures[key].head) for key in keys]
    rows: list[list[str]] = []
    for setting in settings:
        variants = [one for one in findings.variants(setting) if one != to]
        for i, variant in enumerate(variants):
            row = ["" if i else setting, variant]
            for key in keys:
                found = findings.ratio(setting, variant, to, key)
                row.append(NOTHING if found is None else found.text())
            rows.append(row)
    note = f"Times as much as with {to}, on the same stretch of the trace. {_NOTE}"
    return Table(title, columns, rows, note)

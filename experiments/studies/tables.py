"""Tables of findings."""

from collections.abc import Callable, Sequence
from typing import Final

from experiments.report.table import Column, Table
from experiments.report.texts import NOTHING
from experiments.studies.findings import Findings
from experiments.studies.measure import Measure

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
    measures = _measures(findings)
    columns = [Column(measures[key].head, measures[key].unit) for key in keys]

    def cell(setting: str, variant: str, key: str) -> str:
        found = findings.range(setting, variant, key)
        return NOTHING if found is None else found.text(measures[key].shown)

    rows = _rows(settings, findings.variants, keys, cell)
    return Table(title, [*_texts(heads), *columns], rows, _NOTE)


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
    measures = _measures(findings)
    columns = [Column(measures[key].head) for key in keys]

    def others(setting: str) -> list[str]:
        return [one for one in findings.variants(setting) if one != to]

    def cell(setting: str, variant: str, key: str) -> str:
        found = findings.ratio(setting, variant, to, key)
        return NOTHING if found is None else found.text()

    note = f"Times as much as with {to}, on the same stretch of the trace. {_NOTE}"
    rows = _rows(settings, others, keys, cell)
    return Table(title, [*_texts(heads), *columns], rows, note)


def _measures(findings: Findings) -> dict[str, Measure]:
    return {measure.key: measure for measure in findings.measures}


def _texts(heads: Sequence[str]) -> list[Column]:
    return [Column(head, text=True) for head in heads]


def _rows(
    settings: Sequence[str],
    variants: Callable[[str], Sequence[str]],
    keys: Sequence[str],
    cell: Callable[[str, str, str], str],
) -> list[list[str]]:
    """Return a row for each variant; its setting is said once for all rows of it."""
    return [
        ["" if i else setting, variant, *(cell(setting, variant, key) for key in keys)]
        for setting in settings
        for i, variant in enumerate(variants(setting))
    ]

"""Tradeoff: two figures of each variant against each other, both better the smaller they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.report.drawing import Area, Plot
from experiments.report.labels import Labels
from experiments.report.look import DASHES, GROUND, SERIES, TEXT_PT
from experiments.report.texts import number
from experiments.studies.findings import Findings, Range

_WIDTH, _HEIGHT, _TOP = 360.0, 260.0, 24.0


@dataclass(frozen=True, slots=True)
class Family:
    """Variants of one kind, which a line joins.

    Attributes:
        name: theirs.
        variants: names of the variants, in the order in which they are joined.
    """

    name: str
    variants: Sequence[str]

    def label(self, variant: str) -> str:
        """Return what is to be said of a variant beside the family's name."""
        return variant.removeprefix(self.name).removesuffix("replicas").strip()


def tradeoff(
    findings: Findings,
    name: str,
    title: str,
    families: Sequence[Family],
    settings: Sequence[str],
    keys: tuple[str, str],
) -> Plot:
    """Return a plot with a panel for each setting, and a point for each variant: its medians.

    Args:
        findings: where the figures are.
        name: of the plot's file.
        title: what it shows.
        families: of the variants.
        settings: from left to right.
        keys: of the measures along x and y.
    """
    measures = {measure.key: measure for measure in findings.measures}
    along, up = (measures[key] for key in keys)

    def point(setting: str, variant: str) -> tuple[Range, Range] | None:
        found = tuple(findings.range(setting, variant, key) for key in keys)
        return (found[0], found[1]) if found[0] and found[1] else None

    def draw(area: Area) -> None:
        for i, setting in enumerate(settings):
            place = Area(area.figure, area.x + i * _WIDTH, area.y, _WIDTH, area.height - _TOP)
            axes = place.axes(38, 14, 30, 20)
            axes.set_title(f"{setting}: {up.head}, {up.unit}")
            axes.set_xlabel(f"{along.head} {along.unit}".strip())
            dots: list[_Dot] = []
            for k, family in enumerate(families):
                joined = [
                    _Dot(x.middle * along.shown, y.middle * up.shown, family.label(variant), k)
                    for variant in family.variants
                    if (found := point(setting, variant))
                    for x, y in [found]
                ]
                _join(axes, joined, k, family.name)
                dots += joined
            _scale(axes)
            _label(axes, dots)
            if i == 0:
                _explain(axes, area)

    said = [
        f"{setting}, {variant}: {number(found[0].middle * along.shown)} {along.head}, "
        f"{number(found[1].middle * up.shown)} {up.unit} {up.head}"
        for setting in settings
        for family in families
        for variant in family.variants
        if (found := point(setting, variant))
    ]
    alt = "; ".join(said) + "."
    return Plot(name, title, alt, _WIDTH * len(settings), _HEIGHT + _TOP, draw)


@dataclass(frozen=True, slots=True)
class _Dot:
    """A variant in one panel; ``kind`` is the number of its family."""

    x: float
    y: float
    label: str
    kind: int


def _colour(kind: int) -> str:
    return SERIES[kind % len(SERIES)]


def _join(axes: Axes, dots: Sequence[_Dot], kind: int, family: str) -> None:
    xs, ys = [dot.x for dot in dots], [dot.y for dot in dots]
    style = DASHES[kind % len(DASHES)]
    axes.plot(
        xs, ys, color=_colour(kind), linestyle=style, marker="o", markersize=4, label=family,
        markeredgecolor=GROUND, clip_on=False,
    )  # fmt: skip


def _label(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Write at each dot what it is, and once for those of a family that lie together."""
    labels = Labels(axes, [(dot.x, dot.y) for dot in dots])
    for kind in dict.fromkeys(dot.kind for dot in dots):
        for heap in labels.heaps(i for i, dot in enumerate(dots) if dot.kind == kind):
            text = ", ".join(dots[i].label for i in heap if dots[i].label)
            labels.put(heap[0], [text] if text else [], color=_colour(kind), fontsize=TEXT_PT)


def _scale(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _explain(axes: Axes, area: Area) -> None:
    handles, labels = axes.get_legend_handles_labels()
    width, height = (float(size) * 72 for size in area.figure.get_size_inches())
    place = ((area.x + 8) / width, (area.y + area.height - 4) / height)
    area.figure.legend(handles, labels, loc="upper left", bbox_to_anchor=place, ncols=len(labels))

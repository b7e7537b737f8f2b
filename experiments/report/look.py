"""The look of all plots: colours, dashes, sizes of text."""

from typing import Any, Final

INK: Final = "#1b2326"
SOFT: Final = "#5d6a6e"
LINE: Final = "#e2e5e3"
GROUND: Final = "#ffffff"
# Okabe and Ito's hues, which most colour-blind people tell apart, darkened until text in them
# can be read on white; the page has lighter ones for dark mode under the same numbers.
SERIES: Final = ("#0072b2", "#c25200", "#007a5a", "#a8487e", "#8f6200", "#5d6a6f")
# So that nothing is told by colour alone.
DASHES: Final[tuple[Any, ...]] = (
    "-",
    (0, (4, 1.2)),
    (0, (1.2, 1.2)),
    (0, (6, 1.2, 1.2, 1.2)),
    (0, (8, 2)),
    (0, (2, 2)),
)
TEXT_PT: Final = 8.0

STYLE: Final[dict[str, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": SOFT,
    "axes.labelpad": 2.0,
    "axes.labelsize": TEXT_PT,
    "axes.linewidth": 0.6,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.titlesize": TEXT_PT,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.dpi": 72.0,
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT_PT,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.0,
    "legend.borderpad": 0.2,
    "legend.columnspacing": 1.0,
    "legend.fontsize": TEXT_PT,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "legend.handletextpad": 0.5,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.3,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "path.simplify": True,
    "svg.fonttype": "none",
    # A dollar in a name is a dollar.
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": SOFT,
    "xtick.labelsize": TEXT_PT,
    "xtick.major.size": 3.0,
    "xtick.major.width": 0.6,
    "xtick.minor.size": 0.0,
    "ytick.color": SOFT,
    "ytick.labelsize": TEXT_PT,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
}

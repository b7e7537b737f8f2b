"""A run as a picture."""

from pathlib import Path
from typing import Any

import matplotlib

from experiments.peers.result import Run

_COLOURS = ("#0b6e8f", "#e08e2b", "#8a8f98", "#5b4b8a")
_INK = "#333333"


def draw(run: Run, file: Path) -> None:
    """Write an SVG: a panel for each load, a bar for each peer's median, a dot for each round.

    The same run gives the same bytes.
    """
    matplotlib.use("svg")
    from matplotlib import pyplot

    loads, peers = run.loads(), list(run.versions)
    style: dict[Any, Any] = {
        "svg.hashsalt": "peers",
        "font.size": 9,
        "text.color": _INK,
        "axes.edgecolor": _INK,
    }
    with matplotlib.rc_context(style):
        figure, panels = pyplot.subplots(
            1, len(loads), figsize=(2.3 * len(loads), 2.9), squeeze=False, layout="constrained"
        )
        for panel, load in zip(panels[0], loads, strict=True):
            for x, peer in enumerate(peers):
                rates = [s.rate for s in run.samples if (s.peer, s.load) == (peer, load)]
                spread = run.rate(peer, load)
                if spread is None:
                    continue
                colour = _COLOURS[x % len(_COLOURS)]
                panel.bar(x, spread.median, width=0.7, color=colour, alpha=0.85)
                panel.scatter([x] * len(rates), rates, s=7, color=_INK, zorder=3)
                # Above the highest dot, so that none hides it.
                panel.annotate(
                    f"{spread.median:,.{0 if spread.median >= 10 else 1}f}",
                    (x, spread.high),
                    xytext=(0, 5),
                    textcoords="offset points",
                    ha="center",
                )
            panel.set_xticks(range(len(peers)), peers, rotation=20)
            panel.set_title(load.replace(", ", ",\n"), fontsize=9)
            panel.yaxis.set_major_formatter("{x:,g}")
            panel.margins(y=0.15)
            panel.spines[["top", "right"]].set_visible(False)
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)

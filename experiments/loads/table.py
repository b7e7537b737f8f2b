"""A load as a table of commas: the format of Tidegate's own, which keeps all of a load."""

import csv
from typing import IO

from experiments.loads.errors import TraceError
from experiments.loads.load import Arrival, Load
from experiments.loads.order import Order
from experiments.loads.rows import Row, table_rows

NEEDED = ("at", "prompt_tokens", "output_tokens")
COLUMNS = (*NEEDED, "priority", "tenant", "pieces", "piece_tokens")


def read(path: str) -> tuple[list[Arrival], int | None]:
    """Return the requests of a table, and the length of a piece if it says one.

    Raises:
        TraceError: a line is wrong, or the file cannot be read.
    """
    order, size = Order(), None
    arrivals = []
    for row in table_rows(path):
        row.require(NEEDED, COLUMNS)
        size = _piece_tokens(row, size)
        arrivals.append(_arrival(row, order))
        if arrivals[-1].pieces and size is None:
            raise TraceError(path, row.line, "piece_tokens", None, "there, as 'pieces' is")
    return arrivals, size


def write(load: Load, to: IO[str]) -> None:
    """Write a load so that `read` gives the same again.

    Args:
        load: what to write.
        to: a file that is open for text without a change of line ends.
    """
    lines = csv.writer(to, lineterminator="\n")
    lines.writerow(COLUMNS)
    for one in load.arrivals:
        pieces = " ".join(map(str, one.pieces))
        lengths = (one.at, one.prompt_tokens, one.output_tokens)
        lines.writerow((*lengths, one.priority, one.tenant, pieces, load.piece_tokens))


def _arrival(row: Row, order: Order) -> Arrival:
    given = {name for name, value in row.values.items() if value}
    return Arrival(
        at=order.next(row, "at", row.number("at")),
        prompt_tokens=row.tokens("prompt_tokens"),
        output_tokens=row.tokens("output_tokens"),
        priority=row.priority("priority") if "priority" in given else 0,
        tenant=row.text("tenant") if "tenant" in given else "",
        pieces=row.names("pieces") if "pieces" in given else (),
    )


def _piece_tokens(row: Row, before: int | None) -> int | None:
    if not row.values.get("piece_tokens"):
        return before
    size = row.tokens("piece_tokens")
    if before not in (None, size):
        raise row.error("piece_tokens", f"{before}, as before")
    return size

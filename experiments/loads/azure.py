"""Azure's traces of LLM inference: a table of times, prompt tokens and generated tokens.

Azure/AzurePublicDataset; the 2023 ones are described in Patel et al., *Splitwise: Efficient
generative LLM inference using phase splitting*, ISCA 2024.
"""

import re
from collections.abc import Iterator
from datetime import datetime

from experiments.loads.load import Arrival
from experiments.loads.order import Order
from experiments.loads.rows import Row, table_rows

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_NS = 10**9


def read(path: str) -> Iterator[Arrival]:
    """Yield the requests of a trace; its first one comes at 0.

    Raises:
        TraceError: a line is wrong, or the file cannot be read.
    """
    order, first = Order(), None
    for row in table_rows(path):
        row.require(COLUMNS, COLUMNS)
        time = _nanoseconds(row)
        if first is None:
            first = time
        if time < first:
            raise row.error("TIMESTAMP", "no earlier than that of the first line")
        at = order.next(row, "TIMESTAMP", (time - first) / _NS)
        yield Arrival(at, row.tokens("ContextTokens"), row.tokens("GeneratedTokens"))


def _nanoseconds(row: Row) -> int:
    """Return a row's time since 1970; whole, since floats would round the seventh digit."""
    found = _TIME.fullmatch(row.text("TIMESTAMP").strip())
    try:
        if found is None:
            raise ValueError
        whole, fraction, zone = found.groups()
        time = datetime.fromisoformat(f"{whole}{zone or '+00:00'}")
    except ValueError:
        raise row.error("TIMESTAMP", "a time like 2023-11-16 18:15:46.6805900") from None
    return int(time.timestamp()) * _NS + int((fraction or "0").ljust(9, "0"))

"""Lines of JSON as Mooncake's traces, aiperf and guidellm have them.

All three name a request's time, lengths and the blocks of its prompt alike. Times are in
milliseconds, for guidellm in seconds, and each of the tools takes some more of a request.

Mooncake: Qin et al., *Mooncake: Trading More Storage for Less Computation*, FAST 2025. aiperf:
its `mooncake_trace` format (0.13). guidellm: its data of kind `mooncake`, or `trace_synthetic` if
there are no blocks (0.8).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from experiments.loads.blocks import whole_blocks
from experiments.loads.load import Arrival, Load
from experiments.loads.order import Order
from experiments.loads.rows import Row, json_rows

PIECE_TOKENS = 512  # what a block is unless the tool is told otherwise

_NEEDED = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What tells one tool's lines from another's.

    Attributes:
        units: of its timestamps in a second.
        more: fields that it has besides those that all have.
        from_first: times count from the first request, as the tool does it.
    """

    units: int
    more: tuple[str, ...] = ()
    from_first: bool = False

    @property
    def known(self) -> tuple[str, ...]:
        """All fields that its lines can have."""
        return (*_NEEDED, "hash_ids", *self.more)


MOONCAKE = Dialect(1000)
# A session of several turns is known here to be refused: what a turn's answer and delay come to
# is not known before it is sent.
AIPERF = Dialect(1000, ("type", "session_id", "extra", "tenant"))
GUIDELLM = Dialect(1, ("duration", "priority", "tenant"), from_first=True)


def read(path: str, dialect: Dialect, size: int = PIECE_TOKENS) -> Iterator[Arrival]:
    """Yield the requests of a trace.

    Args:
        path: the file.
        dialect: whose lines they are.
        size: of a block, in tokens.

    Raises:
        TraceError: a line is wrong, or the file cannot be read.
    """
    order, first = Order(), None
    sessions: dict[str, int] = {}
    for row in json_rows(path):
        row.require(_NEEDED, dialect.known)
        time = row.number("timestamp")
        if first is None:
            first = time if dialect.from_first else 0.0
        _one_turn(row, sessions)
        prompt = row.tokens("input_length")
        yield Arrival(
            at=order.next(row, "timestamp", (time - first) / dialect.units),
            prompt_tokens=prompt,
            output_tokens=row.tokens("output_length"),
            priority=_priority(row),
            tenant=row.text("tenant") if "tenant" in row.values else "",
            pieces=_blocks(row, prompt, size),
        )


def write(load: Load, to: IO[str], dialect: Dialect) -> None:
    """Write a load as a tool reads it.

    For aiperf each line carries what makes a server go on to the exact length and heed the
    priority; guidellm asks for the exact length by itself and cannot send a priority, so that
    and the tenant only stand there for who reads the file.

    Args:
        load: what to write.
        to: a file that is open for text.
        dialect: `AIPERF` or `GUIDELLM`.
    """
    blocks = whole_blocks(load, fill=dialect is GUIDELLM)
    # guidellm takes a file where all lines have blocks, or none has.
    all_have = dialect is GUIDELLM and any(blocks)
    for arrival, ids in zip(load.arrivals, blocks, strict=True):
        values: dict[str, Any] = {
            "timestamp": _timestamp(arrival.at * dialect.units),
            "input_length": arrival.prompt_tokens,
            "output_length": arrival.output_tokens,
        }
        if ids or all_have:
            values["hash_ids"] = list(ids)
        if dialect is AIPERF:
            values["extra"] = {"ignore_eos": True}
            if arrival.priority:
                values["extra"]["priority"] = arrival.priority
            if arrival.tenant:
                values["tenant"] = arrival.tenant
        else:
            values |= {"priority": arrival.priority, "tenant": arrival.tenant}
        to.write(json.dumps(values) + "\n")


def _timestamp(value: float) -> int | float:
    """Return a time without the noise that a change of unit leaves; whole if it is."""
    rounded = round(value, 6)
    return int(rounded) if rounded.is_integer() else rounded


def _blocks(row: Row, prompt: int, size: int) -> tuple[int, ...]:
    if row.values.get("hash_ids") is None:
        return ()
    ids, most = row.names("hash_ids"), -(-prompt // size)
    # Of blocks that are smaller than is thought, prompts would seem to have more in common.
    if len(ids) > most:
        limit = f"at most {most} blocks of {size} tokens for a prompt of {prompt}"
        raise row.error("hash_ids", limit)
    return ids


def _one_turn(row: Row, sessions: dict[str, int]) -> None:
    if row.values.get("session_id") is None:
        return
    session = row.text("session_id")
    if session in sessions:
        limit = f"another than on line {sessions[session]}: sessions of several turns are not read"
        raise row.error("session_id", limit)
    sessions[session] = row.line


def _priority(row: Row) -> int:
    if "priority" in row.values:
        return row.priority("priority")
    extra = row.values.get("extra")
    if extra is None:
        return 0
    if not isinstance(extra, dict):
        raise row.error("extra", "an object")
    if "priority" not in extra:
        return 0
    return Row(row.path, row.line, {"extra.priority": extra["priority"]}).priority("extra.priority")

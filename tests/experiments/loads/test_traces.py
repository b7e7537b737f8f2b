"""Traces: each format is read as its tool means it, and what is wrong is said with its line."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.loads.errors import TraceError
from experiments.loads.load import Arrival, Load
from experiments.loads.traces import Format, Written, format_of, read_trace, write_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 3040, "input_length": 7322, "output_length": 490, "hash_ids": [0, 4]}\n'
)
CSV = (
    "at,prompt_tokens,output_tokens,priority,tenant,pieces,piece_tokens\n"
    '0.0,10,3,0,,,16\n0.25,20,4,-2,"a, b",7 8,16\n'
)


def trace(folder: Path, content: str | bytes, name: str = "trace") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_azures_times_keep_their_seventh_digit(tmp_path: Path) -> None:
    load = read_trace(trace(tmp_path, AZURE))
    assert load.arrivals == [Arrival(0.0, 374, 44), Arrival(4.314579, 396, 109)]
    assert load.name == "trace"


def test_azures_later_traces_tell_their_zone(tmp_path: Path) -> None:
    text = AZURE.replace("46.6805900", "46.68059+00:00").replace("50.9951690", "51+00:00")
    assert [one.at for one in read_trace(trace(tmp_path, text)).arrivals] == [0.0, 4.31941]


def test_mooncakes_blocks_are_pieces_of_512_tokens(tmp_path: Path) -> None:
    path = trace(tmp_path, MOONCAKE)
    load = read_trace(path)
    assert load.arrivals == [
        Arrival(0.0, 6758, 500, pieces=(0, 1, 2)),
        Arrival(3.04, 7322, 490, pieces=(0, 4)),
    ]
    assert load.piece_tokens == 512
    assert read_trace(path, piece_tokens=16).piece_tokens == 16


def test_aiperfs_priority_is_what_it_sends(tmp_path: Path) -> None:
    line = {"timestamp": 5.5, "input_length": 7, "output_length": 2, "session_id": "one"}
    path = trace(tmp_path, json.dumps(line | {"extra": {"priority": 3, "top_p": 0.5}}))
    assert read_trace(path).arrivals == [Arrival(0.0055, 7, 2, priority=3)]


def test_guidellms_times_are_seconds_from_the_first(tmp_path: Path) -> None:
    """Read as Mooncake's, the load would come a thousand times too fast."""
    lines = [
        {"timestamp": 1_700_000_000 + at, "input_length": 7, "output_length": 2} for at in (1, 3.5)
    ]
    path = trace(tmp_path, "\n".join(map(json.dumps, lines)))
    assert [one.at for one in read_trace(path, "guidellm").arrivals] == [0.0, 2.5]
    with pytest.raises(TraceError, match=r"trace:1: 'timestamp' must be from 0 to 1\.5e\+06"):
        read_trace(path)


def test_our_own_table_has_all_of_a_load(tmp_path: Path) -> None:
    load = read_trace(trace(tmp_path, CSV))
    assert load.arrivals[1] == Arrival(0.25, 20, 4, -2, "a, b", (7, 8))
    assert load.piece_tokens == 16
    short = read_trace(trace(tmp_path, "output_tokens,at,prompt_tokens\n3,1e-3,8\n"))
    assert short.arrivals == [Arrival(0.001, 8, 3)]


@pytest.mark.parametrize("content", [AZURE, MOONCAKE, CSV])
@pytest.mark.parametrize("how", ["mark", "dos", "packed", "blank lines"])
def test_the_same_is_read_however_a_file_was_stored(tmp_path: Path, content: str, how: str) -> None:
    changed = {
        "mark": b"\xef\xbb\xbf" + content.encode(),
        "dos": content.replace("\n", "\r\n").encode(),
        "packed": gzip.compress(content.encode()),
        "blank lines": b"\n" + content.replace("\n", "\n\n").encode() + b"\n",
    }
    plain, other = trace(tmp_path, content, "a"), trace(tmp_path, changed[how], "b")
    assert list(read_trace(plain).arrivals) == list(read_trace(other).arrivals)


def line(values: str) -> str:
    return MOONCAKE + f'{{"timestamp": 3040, "input_length": 1, "output_length": 1, {values}}}'


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        ("", None, "trace: must be a trace with at least one request, not empty"),
        ("\n\n", None, "trace: must be a trace with at least one request, not empty"),
        (AZURE.split("\n")[0], None, "trace: must be a trace with at least one request, not empty"),
        ("a,b\n1,2\n", None, "trace:1: must be the columns TIMESTAMP,ContextTokens,Generated"),
        ("a,b\n1,2\n", "azure", "trace:1: 'TIMESTAMP' must be there: it is missing"),
        (AZURE.replace("GeneratedTokens", "Tokens"), None, "trace:1: 'GeneratedTokens' must be th"),
        (
            AZURE.replace("\n", ",1\n").replace("Tokens,1", "Tokens,Model"),
            None,
            "trace:1: 'Model' must be left out: known are TIMESTAMP, ContextTokens, GeneratedTok",
        ),
        ("\nat,b\n1,2\n", "csv", "trace:2: 'prompt_tokens' must be there: it is missing"),
        (AZURE.replace("Generated", "Context"), None, "trace:1: must be columns of different n"),
        (AZURE + "2023-11-16 18:15:51,1\n", None, "trace:4: must be 3 fields, one for each colum"),
        (AZURE + '2023-11-16 18:15:51,1,"1\n', None, "trace:4: must be a line of a table, not"),
        (AZURE + "yesterday,1,1\n", None, "trace:4: 'TIMESTAMP' must be a time like 2023-11-16"),
        (AZURE + "2023-13-16 18:15:51,1,1\n", None, "trace:4: 'TIMESTAMP' must be a time like"),
        (
            AZURE + "2023-11-16 18:15:49,1,1\n",
            None,
            "trace:4: 'TIMESTAMP' must be no earlier than that of line 3: a trace is sorted by",
        ),
        (AZURE + "2023-11-16 18:00:00,1,1\n", None, "trace:4: 'TIMESTAMP' must be no earlier than"),
        (AZURE + "2023-11-16 18:15:51,0,1\n", None, "'ContextTokens' must be at least 1"),
        (AZURE + "2023-11-16 18:15:51,1,0\n", None, "trace:4: 'GeneratedTokens' must be at least"),
        (AZURE + "2023-11-16 18:15:51,1,-5\n", None, "must be at least 1, not '-5'"),
        (
            AZURE + "2023-11-16 18:15:51,10000001,1\n",
            None,
            "trace:4: 'ContextTokens' must be at most 10000000, not '10000001'",
        ),
        (MOONCAKE.replace("490", "1" + "0" * 12), None, "trace:2: 'output_length' must be at most"),
        (CSV + f"1,1,1,{2**31},,,\n", None, "'priority' must be at most 2147483647, not '21474836"),
        (CSV + f"1,1,1,{-(2**31) - 1},,,\n", None, "'priority' must be at least -2147483648, not"),
        (
            line(f'"extra": {{"priority": {2**63}}}'),
            "aiperf",
            "trace:3: 'extra.priority' must be at most 2147483647, not",
        ),
        (AZURE + "2023-11-16 18:15:51,1.5,1\n", None, "trace:4: 'ContextTokens' must be an intege"),
        (AZURE + "2023-11-16 18:15:51,1_0,1\n", None, "must be an integer, not '1_0'"),
        (MOONCAKE + "[1]\n", None, "trace:3: must be a JSON object, not '[1]'"),
        (MOONCAKE + '{"timestamp": 1, "inp', None, "trace:3: must be a JSON object, not '{\"time"),
        (line('"prompt": "x"'), None, "trace:3: 'prompt' must be left out: known are timestamp"),
        (line('"hash_ids": [1, -1]'), None, "'hash_ids' must be a list of integers that are at"),
        (line('"hash_ids": [1, 2]'), None, "trace:3: 'hash_ids' must be at most 1 blocks of 512"),
        (line('"hash_ids": 7'), None, "must be a list of integers that are at least 0, not 7"),
        (MOONCAKE.replace("3040", "NaN"), None, "trace:2: 'timestamp' must be a number, not NaN"),
        (MOONCAKE.replace("3040", "true"), None, "trace:2: 'timestamp' must be a number, not true"),
        (MOONCAKE.replace("3040", "-1"), None, "trace:2: 'timestamp' must be no earlier than"),
        (MOONCAKE.replace(": 0,", ": -1,"), None, "trace:1: 'timestamp' must be from 0 to 1.5e+06"),
        (MOONCAKE.replace("490", '"490"'), None, "'output_length' must be an integer, not '490'"),
        (MOONCAKE.replace("490", "4.5"), None, "trace:2: 'output_length' must be an integer, not"),
        (MOONCAKE.replace("490", "null"), None, "'output_length' must be an integer, not null"),
        (line('"extra": {"priority": "x"}'), "aiperf", "'extra.priority' must be an integer, not"),
        (line('"extra": 1'), "aiperf", "trace:3: 'extra' must be an object, not 1"),
        (line('"session_id": "s"') + "\n" + line('"session_id": "s"')[len(MOONCAKE) :], "aiperf",
         "trace:4: 'session_id' must be another than on line 3: sessions of several turns"),
        (line('"delay": 5'), "aiperf", "trace:3: 'delay' must be left out"),
        (CSV + "1,1,1,0,,,8\n", None, "trace:4: 'piece_tokens' must be 16, as before, not '8'"),
        ("at,prompt_tokens,output_tokens,pieces\n1,1,1,5\n", None, "trace:2: 'piece_tokens' must"),
        (CSV + "1,1,1,high,,,\n", None, "trace:4: 'priority' must be an integer, not 'high'"),
        (CSV + "inf,1,1,0,,,\n", None, "trace:4: 'at' must be a number, not 'inf'"),
        (gzip.compress(AZURE.encode())[:40], None, "trace: must be a whole gzip file, not broken"),
        (AZURE.encode() + b"\xff,1,1\n", None, "trace: must be UTF-8 text, not broken"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, content: str | bytes, form: Format | None, message: str
) -> None:
    path = trace(tmp_path, content)
    with pytest.raises(TraceError) as wrong:
        read_trace(path, form)
    assert message in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert len(str(wrong.value).removeprefix(str(tmp_path))) < 250


def test_an_error_has_its_parts(tmp_path: Path) -> None:
    path = trace(tmp_path, AZURE + "2023-11-16 18:15:51,1,-5\n")
    with pytest.raises(TraceError) as wrong:
        read_trace(path)
    error = wrong.value
    assert (error.path, error.line, error.field) == (path, 4, "GeneratedTokens")
    assert (error.value, error.limit) == ("'-5'", "at least 1")


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a file that can be read \(No such file"):
        read_trace(str(tmp_path / "none"))
    with pytest.raises(TraceError, match=r"a file that can be read \(Is a directory"):
        read_trace(str(tmp_path))


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=5)
arrivals = st.builds(
    Arrival,
    at=st.integers(0, 10**9).map(lambda us: us / 1e6),
    prompt_tokens=st.integers(1, 400),
    output_tokens=st.integers(1, 400),
    priority=st.integers(-9, 9),
    tenant=names,
    pieces=st.lists(st.integers(0, 6), max_size=9).map(tuple),
)
loads = st.builds(
    Load,
    name=st.just("written"),
    arrivals=st.lists(arrivals, min_size=1, max_size=12).map(
        lambda many: sorted(many, key=lambda one: one.at)
    ),
    piece_tokens=st.integers(1, 64),
)


@given(loads)
def test_our_own_table_gives_back_the_same_load(
    tmp_path_factory: pytest.TempPathFactory, load: Load
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "written")
    write_trace(load, path, "csv")
    assert format_of(path) == "csv"
    assert read_trace(path) == load


@given(loads)
def test_aiperf_and_guidellm_get_blocks_that_they_accept(
    tmp_path_factory: pytest.TempPathFactory, load: Load
) -> None:
    """aiperf stops at a block of two lengths; guidellm at a prompt with too few blocks."""
    path = str(tmp_path_factory.getbasetemp() / "written.jsonl")
    size = load.piece_tokens
    for form in ("aiperf", "guidellm"):
        write_trace(load, path, form)
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        lengths: dict[int, set[int]] = defaultdict(set)
        for row, arrival in zip(rows, load.arrivals, strict=True):
            ids = row.get("hash_ids", [])
            left = row["input_length"]
            for one in ids:
                assert left > 0, "a block beyond the prompt's end"
                lengths[one].add(min(left, size))
                left -= size
            whole = arrival.pieces[: arrival.prompt_tokens // size]
            assert tuple(ids[: len(whole)]) == whole
            if form == "guidellm" and any("hash_ids" in one for one in rows):
                assert len(ids) == -(-row["input_length"] // size)
        assert all(len(of_one) == 1 for of_one in lengths.values())


@given(loads, st.sampled_from(["aiperf", "guidellm"]))
def test_what_is_written_for_a_tool_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, load: Load, form: Written
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "written.jsonl")
    write_trace(load, path, form)
    again = read_trace(path, piece_tokens=load.piece_tokens)
    first = load.arrivals[0].at if form == "guidellm" else 0.0
    for one, other in zip(load.arrivals, again.arrivals, strict=True):
        assert other.at == pytest.approx(one.at - first, abs=1e-6)
        for name in ("prompt_tokens", "output_tokens", "priority", "tenant"):
            assert getattr(one, name) == getattr(other, name)

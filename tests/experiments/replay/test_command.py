"""The command line, against a scripted server in a thread of its own."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.replay.command import _public, main
from experiments.report.record import read_runs
from experiments.simulator.command import main as simulate
from tests.experiments.replay.scripted import METRICS, Exchange, Scripted

LOAD = "constant:rate=50,seconds=0.1,prompt=4,output=2"


async def answer(exchange: Exchange) -> None:
    """Refuse the urgent; the nearly urgent are those at which somebody presses Ctrl-C."""
    if exchange.body.get("priority") == 8:
        os.kill(os.getpid(), signal.SIGINT)
    if exchange.body.get("priority") == 9:
        await exchange.error(429, "rate_limit_error", "queue_full")
    else:
        await exchange.whole()


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    scripted, ready, over = Scripted(answer), threading.Event(), asyncio.Event()
    scripted.metrics = METRICS
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with scripted.running():
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    yield scripted
    loop.call_soon_threadsafe(over.set)
    thread.join(30)
    loop.close()


def test_a_load_is_sent_and_reported(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    flags = ["--url", str(server.url), "--out", str(out), "--formats", "csv", "--name", "live"]
    server.key = "sk-1"
    assert main(["--trace", LOAD, *flags, "--api-key", "sk-1"]) == 0
    server.key = ""
    (run,) = read_runs(out)
    assert (run.name, run.kind, len(run.outcomes)) == ("live", "measured", 5)
    assert [one.output_tokens for one in run.outcomes] == [2] * 5
    said = capsys.readouterr()
    assert "live" in said.out
    assert "sk-1" not in said.out + said.err + "".join(p.read_text() for p in out.glob("*.*"))


@pytest.mark.parametrize("words", [["--api-key", "sk-1"], ["--api-key=sk-1"]])
def test_a_report_shows_the_command_without_the_key(words: list[str]) -> None:
    shown = _public(["--seed", "1", *words, "--name", "a"])
    assert " ".join(shown).replace("=", " ") == "--seed 1 --api-key KEY --name a"


def test_what_was_refused_is_said(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", LOAD, "--url", str(server.url), "--priorities", "9"]) == 1
    assert "5 times rate_limit_error/queue_full: no" in capsys.readouterr().err


def test_an_earlier_report_stands_beside_it(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ["--out", str(tmp_path), "--formats", "csv", "--name", "before"]
    assert main(["--trace", LOAD, "--url", str(server.url), *first]) == 0
    again = ["--trace", LOAD, "--url", str(server.url), "--against", str(tmp_path)]
    assert main(again) == 0
    assert "before" in capsys.readouterr().out
    other = LOAD.replace("seconds=0.1", "seconds=0.2")
    assert main(["--trace", other, "--url", str(server.url), "--against", str(tmp_path)]) == 1
    assert "is a run of 5 requests, but the load has 10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (["--rate-scale", "2"], "request 1 came at 0.02 s there, at 0.01 s here"),
        (["--length-scale", "2"], "request 0 has prompt_tokens 4 there, 8 here"),
        (["--priorities", "3"], "request 0 has priority 0 there, 3 here"),
        (["--tenants", "a"], "request 0 has tenant '' there, 'a' here"),
    ],
)
def test_an_earlier_report_of_another_load_is_refused(
    server: Scripted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    difference: str,
) -> None:
    """Guards against: figures of two loads side by side, since they have as many requests."""
    out = ["--out", str(tmp_path), "--formats", "csv"]
    assert simulate(["--trace", LOAD, *out, "--replicas", "1"]) == 0
    sent = len(server.asked)
    again = ["--trace", LOAD, "--url", str(server.url), "--against", str(tmp_path)]
    assert main([*again, *flags]) == 1
    assert f"1 replica is a run of another load: {difference}" in capsys.readouterr().err
    assert len(server.asked) == sent
    assert main([*again, "--rate-scale", "1.0000001"]) == 0  # a trace's format may round so


def test_what_stands_in_the_way_of_a_report_is_said_before_anything_is_sent(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against: hours of a live server's time without a report in the end."""
    first, file = tmp_path / "first", tmp_path / "file"
    file.touch()
    there = ["--trace", LOAD, "--url", str(server.url)]
    assert main([*there, "--out", str(first), "--formats", "csv"]) == 0
    sent = len(server.asked)
    for flags, message in {
        ("--against", str(first), "--out", str(tmp_path / "second")): "twice: measured",
        ("--simulate", "--replicas", "2", "--name", "2 replicas"): "twice: 2 replicas",
        ("--simulate", "--replicas", "2", "--priorities", "4000"): "priority must be from",
        ("--out", str(file)): f"{file}: File exists",
        ("--out", str(file / "in")): f"{file / 'in'}: Not a directory",
    }.items():
        assert main([*there, *flags]) == 1
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert len(server.asked) == sent
    assert [run.name for run in read_runs(first)] == ["measured"]


def test_a_part_is_not_compared_with_the_whole(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load, out = tmp_path / "load.csv", tmp_path / "out"
    load.write_text("at,prompt_tokens,output_tokens,priority\n0,4,2,8\n1000,4,2,8\n")
    report = ["--out", str(out), "--formats", "csv"]
    assert simulate(["--trace", str(load), *report, "--replicas", "1"]) == 0
    beside = ["--against", str(out), "--simulate", "--replicas", "2"]
    assert main(["--trace", str(load), "--url", str(server.url), *beside]) == 130
    said = capsys.readouterr()
    assert f"the runs of {out} are of the whole load: they are not compared" in said.err
    assert said.out.count("Simulated: ") == 1
    assert "Simulated: 2 replicas. Measured: measured." in said.out


def test_a_simulation_of_the_same_load_stands_beside_it(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path), "--formats", "csv"]
    fleet = ["--simulate", "--replicas", "1,2"]
    assert main(["--trace", LOAD, "--url", str(server.url), *out, *fleet]) == 0
    runs = read_runs(tmp_path)
    assert [(run.name, run.kind) for run in runs] == [
        ("1 replica", "simulated"),
        ("2 replicas", "simulated"),
        ("measured", "measured"),
    ]
    for run in runs:
        assert [one.at for one in run.outcomes] == [one.at for one in runs[0].outcomes]
        assert [one.output_tokens for one in run.outcomes] == [2] * 5
    assert "Simulated and measured" in capsys.readouterr().out


def test_what_would_be_simulated_is_not_said_in_vain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", LOAD, "--replicas", "4"]) == 2
    assert "--replicas is of use with --simulate only" in capsys.readouterr().err
    assert main(["--trace", LOAD, "--simulate", "--policy", "wait"]) == 2
    assert "needs bounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--url", "nowhere"], "--url must be as http://127.0.0.1:8000, not 'nowhere'"),
        (["--url", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer: connection refused"),
        (["--api-key", "a b"], "the API key must be printable ASCII"),
        (["--tenants", "a", "--tenant-keys", "nothing.yaml"], "nothing.yaml cannot be read"),
        (["--against", "nothing"], "runs.json is missing"),
        (["--save-load", "no/where.csv"], "no/where.csv: No such file"),
        (["--max-connections", "1000000"], "--max-connections must be at most"),
    ],
)
def test_what_cannot_be_is_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--trace", LOAD, *flags]) == 1
    *before, said = capsys.readouterr().err.splitlines()
    assert said.startswith("tidegate replay: ")
    assert message in said
    assert all("5 requests in" in line for line in before)


@pytest.mark.parametrize(
    "flags",
    [
        ["--retries", "-1"],
        ["--retries", "1.5"],
        ["--timeout", "0"],
        ["--timeout", "soon"],
        ["--vocab", "0"],
        ["--body", "{"],
        ["--body", "[1]"],
        ["--body", '{"stream": false}'],
        ["--formats", "xls"],
        ["--slo-ttft", "-2"],
    ],
)
def test_a_wrong_value_is_named_with_its_limit(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--trace", LOAD, *flags])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"{flags[0]}: must " in said
    assert said.count("\n") == 1

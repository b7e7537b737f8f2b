"""The command: what it compares, what it refuses, and that it does the same twice."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployments.cli import main as tidegate
from deployments.config import ServeConfig
from engine.memory import GPU_SHARE
from experiments.loads.load import Load
from experiments.loads.traces import read_trace
from experiments.report.record import read_runs
from experiments.simulator import command, progress
from experiments.simulator.combinations import Simulations
from experiments.simulator.options import SCHEDULINGS, SETTINGS
from experiments.simulator.outcome import Run
from experiments.simulator.roofline import POOL_SHARE
from experiments.simulator.scenario import Scenario

LOAD = "poisson:rate=20,seconds=4,prompt=uniform:50:200,output=uniform:2:8"


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., list[Run]]:
    """What a command line simulates."""

    def simulated(*arguments: str) -> list[Run]:
        out = ["--formats", "csv", "--out", str(tmp_path / "report")]
        assert command.main(["--trace", LOAD, *arguments, *out]) == 0
        return read_runs(tmp_path / "report")

    return simulated


def test_it_is_a_command_of_tidegate(capsys: pytest.CaptureFixture[str]) -> None:
    assert tidegate(["simulate", "--trace", LOAD]) == 0
    said = capsys.readouterr()
    assert "| 2 replicas |" in said.out
    assert "requests in 4 s" in said.err
    assert "\x1b" not in said.err, "a bar was drawn where there is no terminal"


def test_each_combination_is_a_run(runs: Callable[..., list[Run]]) -> None:
    names = [one.name for one in runs("--replicas", "1,2", "1", "--scheduling", "fcfs", "strict")]
    assert names == [
        "1 replica, fcfs",
        "1 replica, strict",
        "2 replicas, fcfs",
        "2 replicas, strict",
    ]
    settings = [one.settings for one in runs("--aging-seconds", "2", "--scheduling", *SCHEDULINGS)]
    assert [one["aging_seconds"] for one in settings] == [2.0, 1_000_000.0, 2.0]
    several = runs(
        *("--replicas", "1,0..3,2..4", "--policy", "wait", "blocks"),
        *("--router", "most_free_blocks", "round_robin", "most_free_blocks"),
    )
    fleets = ["1 replica", "0..3 by wait", "0..3 by blocks", "2..4 by wait", "2..4 by blocks"]
    assert [one.name for one in several] == [
        f"{fleet}, {router}" for fleet in fleets for router in ("most_free_blocks", "round_robin")
    ]
    by_name = {one.name: one.settings for one in several}
    settings = by_name["2..4 by wait, round_robin"]
    assert settings["autoscaling"] == "wait"
    assert (settings["min_replicas"], settings["max_replicas"]) == (2, 4)
    assert settings["placement"] == "experiments.policies.round_robin:RoundRobin"
    assert "autoscaling" not in by_name["1 replica, most_free_blocks"]


def test_a_run_says_the_size_of_its_fleet_and_no_other(runs: Callable[..., list[Run]]) -> None:
    """Guards against: "replicas 2" of a fleet that is scaled, since that is the default."""
    fixed, scaled = (one.settings for one in runs("--replicas", "2,1..4"))
    sizes = ("replicas", "min_replicas", "max_replicas")
    assert {name: fixed[name] for name in sizes if name in fixed} == {"replicas": 2}
    assert {name: scaled[name] for name in sizes if name in scaled} == {
        "min_replicas": 1, "max_replicas": 4
    }  # fmt: skip


def test_each_option_reaches_what_is_simulated(runs: Callable[..., list[Run]]) -> None:
    [run] = runs(
        *("--start-up", "7", "--network-ms", "2", "--gateway-ms", "3", "--router-us", "50"),
        *("--routers", "2", "--shard-by", "tenant", "--mtbf", "1e6", "--mtbf-kind", "silence"),
        *("--fail", "1:1", "--fail", "2:0:silence", "--sample", "0.5", "--seed", "9"),
        *("--retries", "2", "--first-token-within", "3", "--end-within", "30"),
        *("--max-num-seqs", "9", "--no-prefix-cache", "--num-blocks", "77", "--hold-s", "5"),
        *("--scheduling", "strict"),
    )
    told = {
        "start_s": 7.0,
        "network_s": 0.002,
        "gateway_s": 0.003,
        "router_s": 5e-5,
        "routers": 2,
        "shard_by": "tenant",
        "mtbf_s": 1e6,
        "mtbf_kind": "silence",
        "failures": 2,
        "sample_s": 0.5,
        "seed": 9,
        "retries": 2,
        "first_token_s": 3.0,
        "end_s": 30.0,
        "max_num_seqs": 9,
        "prefix_cache": False,
        "num_blocks": 77,
        "hold_s": 5.0,
        "aging_seconds": 1_000_000.0,
    }
    assert told.items() <= run.settings.items()
    assert run.counts["failed_replicas"] == 2
    assert str(run.settings["step_time"]).startswith("an estimate from data sheets, not measured")


def test_the_memory_of_a_device_is_that_of_its_data_sheet(runs: Callable[..., list[Run]]) -> None:
    """80 GB less 16 of weights, 0.9 of it, in blocks of 16 tokens of 128 KiB each."""
    [run] = runs()
    assert run.settings["num_blocks"] == pytest.approx(0.9 * 64e9 / (16 * 2**17), rel=0.02)
    [larger] = runs("--block-size", "32")
    assert larger.settings["num_blocks"] == pytest.approx(run.settings["num_blocks"] / 2, abs=1)
    assert POOL_SHARE == GPU_SHARE


def test_settings_are_those_of_the_server() -> None:
    assert set(SETTINGS) <= set(ServeConfig.model_fields)
    options = command._parser().parse_args(["--trace", LOAD])
    assert [name for name in SETTINGS if getattr(options, name) is not None] == []


def test_policies_in_files_are_found(
    runs: Callable[..., list[Run]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from deployments.autoscaling import Band\n"
        "class First:\n"
        "    def choose(self, ticket, fleet):\n"
        "        freest = fleet.freest(ticket)\n"
        "        return freest and min(fleet.replicas)\n"
        "def three(demand, target, settings):\n"
        "    return Band(3, 3)\n"
        "def broken(demand, target, settings):\n"
        "    return Band(3 / 0, 3)\n"
    )
    [run] = runs("--router", f"{file}:First", "--replicas", "3")
    assert len({one.replica for one in run.outcomes}) == 1
    scaled = ("--replicas", "1..5", "--scale-up-cooldown-s", "0", "--repeat", "9")
    [run] = runs("--policy", f"{file}:three", *scaled)
    assert max(one.wanted for one in run.samples) == 3
    several = runs("--replicas", "1..2,4", "--policy", f"{file}:three")
    assert [one.name for one in several] == ["1..2 by mine.py:three", "4 replicas"]
    capsys.readouterr()
    arguments = ["--policy", f"{file}:broken", *scaled]
    assert command.main(["--trace", LOAD, *arguments]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err.splitlines()[-1]


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_one_seed_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--replicas", "1..3", "--mtbf", "2", "--priorities", "1:0.5,0:0.5"]
    arguments += ["--router", "power_of_two", "--start-up", "1", "--policy", "blocks"]
    arguments += ["--out", "report", "--formats", "csv", "--save-load", "load"]
    written = []
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert command.main(["--trace", LOAD, "--seed", seed, *arguments]) == 0
        written.append((files(Path("report")), Path("load").read_bytes(), capsys.readouterr()))
    assert len(written[0][0]) == 4
    assert written[0] == written[1]
    assert written[0][0]["outcomes.csv"] != written[2][0]["outcomes.csv"]


def test_the_load_can_be_kept_for_other_tools(tmp_path: Path) -> None:
    path = str(tmp_path / "load.jsonl")
    arguments = ["--trace", LOAD, "--priorities", "3", "--save-load", path, "--as", "aiperf"]
    assert command.main(arguments) == 0
    assert {one.priority for one in read_trace(path).arrivals} == {3}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--replicas", "0"], 2, "argument --replicas: must be a whole number from 1 to 1024, not"),
        (["--replicas", "8..4"], 2, "argument --replicas: must have its lower bound first, not '8"),
        (["--replicas", "4..x"], 2, "argument --replicas: must be a whole number from 1 to 1024"),
        (["--scheduling", "lifo"], 2, "argument --scheduling"),
        (["--port", "80"], 2, "unrecognized arguments: --port 80"),
        (["--fail", "-1"], 2, "argument --fail: must be S, S:N or S:N:crash or silence, with S"),
        (["--fail", "1:0:boom"], 2, "argument --fail: must be S, S:N or S:N:crash or silence"),
        (["--policy", "wait"], 2, "--policy wait needs bounds such as --replicas 4..64, not 2"),
        (["--replicas", "1..2", "--policy", "none"], 2, "--policy none needs a number such as"),
        (["--replicas", "1..2", "--policy", "off"], 2, "--policy off needs a number such as"),
        (["--as", "csv"], 2, "--as csv needs --save-load FILE"),
        (["--formats", "csv,html"], 2, "--formats csv,html needs --out FOLDER"),
        (["--fail", "1", "--fail", "3:2"], 2, "--fail must be of a replica from 0 to 1, since"),
        (["--replicas", "1,2..4", "--fail", "3:4"], 2, "--fail must be of a replica from 0 to 3"),
        (
            ["--scheduling", "strict", "--aging-seconds", "5"],
            2,
            "--aging-seconds needs --scheduling",
        ),
        (["--step-time", "llama-70b@l4"], 2, "--step-time must be of GPUs that hold the model"),
        (["--step-time", "none.json"], 1, "none.json: there is no such file"),
        (["--block-size", "0"], 1, "'block_size' must be at least 1, not 0"),
        (["--router", "nearest"], 2, "most_free_blocks, prefix_affinity, round_robin, least_requ"),
        (["--replicas", "1..2", "--policy", "best"], 1, "autoscaling"),
        (["--routers", "3"], 1, "routers must be at most replicas, 2, not 3"),
        (["--trace", "none.csv"], 1, "none.csv: must be a file that can be read (No such file"),
        (["--trace", "poisson:rate=1"], 1, "seconds of poisson must be given"),
        (["--priorities", "x:1"], 1, "a priority must be a whole number, not 'x'"),
        (["--save-load", "/no/such/folder/load"], 1, "/no/such/folder/load: No such file or dire"),
        (["--key-file", "/no/such/keys"], 1, "/no/such/keys"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found: Any = command.main(["--trace", LOAD, *arguments])
    except SystemExit as end:
        found = end.code
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert found == code
    assert last.startswith("tidegate simulate: ")
    assert message in last
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_folder_that_cannot_be_is_told_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else hours may be lost."""
    file = tmp_path / "file"
    file.touch()
    with monkeypatch.context() as patch:
        patch.delattr(Simulations, "run")
        assert command.main(["--trace", LOAD, "--out", str(file)]) == 1
    assert f"{file}: File exists" in capsys.readouterr().err


def test_a_failure_may_be_of_the_last_replica(runs: Callable[..., list[Run]]) -> None:
    [fixed] = runs("--replicas", "2", "--fail", "1:1")
    assert fixed.counts["failed_replicas"] == 1
    assert len(runs("--replicas", "1,2..4", "--fail", "3:3")) == 2


def test_a_load_of_other_tenants_is_refused_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("tenants: {search: {}}\nkeys: {sk-1: search}\n")
    given = ["--trace", LOAD, "--key-file", str(keys), "--tenants"]
    assert command.main([*given, "crawl"]) == 1
    said = capsys.readouterr()
    assert f"tenant must be one of {keys}, which has search, not 'crawl'" in said.err
    assert said.out == ""
    assert command.main([*given, "search"]) == 0


def test_help_says_where_a_setting_does_less_than_for_a_server() -> None:
    told = " ".join(command._parser().format_help().split())
    assert "In a simulation it only costs" in told


def test_ctrl_c_reports_the_runs_that_were_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours may have gone into them."""
    done = 0

    def run(self: Simulations, scenario: Scenario, load: Load, progress: Any) -> Run:
        nonlocal done
        if done == 2:
            raise KeyboardInterrupt
        done += 1
        return real(self, scenario, load, progress)

    real = Simulations.run
    monkeypatch.setattr(Simulations, "run", run)
    assert command.main(["--trace", LOAD, "--replicas", "1,2,3"]) == 130
    said = capsys.readouterr()
    assert "| 2 replicas |" in said.out
    assert "3 replicas" not in said.out
    assert "interrupted: 1 of 3 runs are not in the report" in said.err
    done = 2
    assert command.main(["--trace", LOAD]) == 130
    said = capsys.readouterr()
    assert "interrupted before anything was simulated" in said.err
    assert said.out == ""


def test_a_terminal_sees_how_far_it_is() -> None:
    screen = StringIO()
    console = Console(force_terminal=True, width=100, file=screen)
    with progress.shown("8 replicas", 200.0, console) as tell:
        tell(-3.0)
        tell(50.0)
        tell(230.0)
    assert "8 replicas" in screen.getvalue()
    assert "of 200 s simulated" in screen.getvalue()

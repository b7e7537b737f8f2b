"""The command line: its flags, its one-line errors, and that it leaves nothing behind."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from deployments import cli
from deployments.cli import greeting, main, parser
from deployments.config import ServeConfig
from deployments.launch import VITAL, free_ports
from deployments.processes import find
from tests.deployments.conftest import Server, eventually, plain_environment


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deployments.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env=plain_environment(),
        check=False,
    )


def test_every_setting_has_a_flag() -> None:
    flags = shlex.split(
        "m --served-model-name n --replicas 3 --gateways 2 --host ::1 --port 81 --dtype float32 "
        "--max-model-len 9 --max-num-seqs 8 --max-num-batched-tokens 7 --block-size 6 "
        "--num-blocks 5 --max-waiting 4 --max-queued 3 --lookahead 0 --scheduling-policy fcfs "
        "--aging-seconds 1.5 --api-key k --num-gpus-per-replica 0.5"
    )
    given = vars(parser().parse_args(["serve", *flags]))
    config = ServeConfig.of({k: v for k, v in given.items() if k in ServeConfig.model_fields})
    assert set(ServeConfig.model_fields) <= set(given)
    assert (config.model, config.name, config.replicas, config.gateways) == ("m", "n", 3, 2)
    assert (config.host, config.port, config.dtype, config.max_model_len) == (
        "::1",
        81,
        "float32",
        9,
    )
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.block_size) == (8, 7, 6)
    assert (config.num_blocks, config.max_waiting, config.max_queued) == (5, 4, 3)
    assert (config.lookahead, config.scheduling_policy, config.aging_seconds) == (0, "fcfs", 1.5)
    assert (config.key, config.num_gpus_per_replica) == ("k", 0.5)


def test_no_flag_means_the_default() -> None:
    given = vars(parser().parse_args(["serve"]))
    config = ServeConfig.of({k: v for k, v in given.items() if k in ServeConfig.model_fields})
    assert config == ServeConfig()


OPEN: dict[str, Any] = {}
ENVIRON = {"TIDEGATE_API_KEY": "secret"}


@pytest.mark.parametrize(
    ("args", "environ", "curl", "watch"),
    [
        (OPEN, OPEN, "8000/v1/chat/completions -H 'Content", "terminal: bin/tidegate top\n"),
        ({"port": 8471}, OPEN, ":8471/v1/chat", "tidegate top --url http://127.0.0.1:8471\n"),
        ({"host": "0.0.0.0"}, OPEN, "127.0.0.1:8000/v1", "terminal: bin/tidegate top\n"),
        ({"api_key": "secret"}, OPEN, ' -H "Authorization: Bearer KEY" ', "top --api-key KEY\n"),
        ({"key_file": "keys"}, OPEN, ' -H "Authorization: Bearer KEY" ', "top --api-key KEY\n"),
        (OPEN, ENVIRON, ' -H "Authorization: Bearer $TIDEGATE_API_KEY" ', "bin/tidegate top\n"),
        (
            {"api_key": "other", "port": 1},
            ENVIRON,
            "Bearer KEY",
            "top --url http://127.0.0.1:1 --api-key KEY\n",
        ),
    ],
    ids=str,
)
def test_what_the_greeting_says_to_try_works_and_shows_no_key(
    args: dict[str, Any], environ: dict[str, str], curl: str, watch: str
) -> None:
    said = greeting(ServeConfig.of(args, environ), "/logs", "bin/tidegate", environ)
    assert curl in said.split("curl ")[1]
    assert watch in said
    assert "secret" not in said
    assert "other" not in said
    commands = re.findall(r"terminal: bin/tidegate (.*)", said)
    assert parser().parse_args(shlex.split(commands[0])).command == "top"


@pytest.mark.parametrize(
    ("called", "found", "command"),
    [
        (".venv/bin/tidegate", None, ".venv/bin/tidegate"),
        (".venv/bin/tidegate", "/usr/bin/tidegate", ".venv/bin/tidegate"),
        ("/usr/bin/tidegate", "/usr/bin/tidegate", "tidegate"),
        ("/my home/tidegate", None, "'/my home/tidegate'"),
        ("/src/deployments/cli.py", None, "python -m deployments.cli"),
    ],
)
def test_the_command_is_named_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, called: str, found: str | None, command: str
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(sys, "executable", "python")
    monkeypatch.setattr(shutil, "which", lambda name: found)
    assert cli.command() == command


def test_ctrl_c_while_the_model_is_fetched_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def fetch(config: ServeConfig) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(cli, "_check_model", fetch)
    try:
        assert cli.serve(ServeConfig()) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().out == "Stopped.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--replicas", "0"], "replicas"),
        (["--replicas", "many"], "replicas"),
        (["--scheduling-policy", "lifo"], "scheduling-policy"),
        (["--no-such-flag"], "no-such-flag"),
        (["--max-model-len", "999999"], "max_model_len"),
        (["/no/such/folder"], "/no/such/folder"),
        (["--host", "192.0.2.99"], "192.0.2.99"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], says: str, tiny_model_dir: Path
) -> None:
    model = [] if arguments[0].startswith("/") else [str(tiny_model_dir)]
    done = run(*model, *arguments)
    assert done.returncode != 0
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_port_in_use_is_said_before_anything_starts(tiny_model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(str(tiny_model_dir), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == (
        f"tidegate serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )


@pytest.mark.cluster
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("end", "flags"),
    [(signal.SIGINT, ["--keep-logs"]), (signal.SIGKILL, [])],
    ids=["ctrl-c, kept", "killed"],
)
def test_no_process_is_left(tiny_model_dir: Path, end: signal.Signals, flags: list[str]) -> None:
    """ray#31451: Ctrl-C, or the driver is killed, with a stream open.

    Ctrl-C without the flag ends as a drain does, see below; what is kept when it is killed,
    test_launch.py says.
    """
    small = ("--replicas", "1", "--num-blocks", "32", "--threads", "1")
    server = Server(str(tiny_model_dir), *small, *flags)
    url = f"{server.url}/v1/completions"
    body = {"prompt": "abc", "max_tokens": 100, "ignore_eos": True, "stream": True}
    stream = threading.Thread(target=_read, args=(url, body), daemon=True)
    stream.start()
    assert len(server.processes()) > 5
    if end is signal.SIGINT:
        # As a terminal does: to the whole group.
        os.killpg(server.process.pid, end)
        assert server.process.wait(10) == 0
    else:
        server.process.kill()
        server.process.wait(10)
    eventually(lambda: not find(server.mark), 10)
    logs = Path(server.output.split("(logs: ")[1].split(";")[0])
    folder = logs.parents[1]
    if flags:
        assert list(logs.glob("serve/replica_*.log"))
        if end is signal.SIGINT:
            assert output(server).endswith(f"Stopped. Logs: {logs}\n")
        shutil.rmtree(folder)
    else:
        eventually(lambda: not folder.exists(), 10)
    stream.join(10)
    server.stop()


def _read(url: str, body: dict[str, object]) -> None:
    while True:
        try:
            httpx.post(url, json=body, timeout=10)
        except httpx.HTTPError:
            return


class Backlog:
    """More streams than a server of one seat computes soon; each on a connection of its own."""

    def __init__(self, server: Server, count: int) -> None:
        self._url = f"{server.url}/v1/completions"
        self._pool = ThreadPoolExecutor(count)
        self._answers = [self._pool.submit(self._ask, number) for number in range(count)]
        names = ("num_requests_waiting", "num_requests_running", "request_success_total")
        eventually(lambda: sum(server.total(name) for name in names) >= count, 60)

    def _ask(self, number: int) -> str:
        body = {"prompt": f"{number:3}", "max_tokens": 100, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", self._url, json=body, timeout=120) as answer:
                assert answer.status_code == 200
                text = answer.read().decode()
        except httpx.HTTPError:
            return "cut"
        return "whole" if text.endswith("data: [DONE]\n\n") and "length" in text else "broken"

    def ends(self) -> Counter[str]:
        """How they ended; waits for all."""
        ends = Counter(answer.result() for answer in self._answers)
        self._pool.shutdown()
        return ends


class StartServer(Protocol):
    """Starts a server of one seat for the tiny model, with further flags."""

    def __call__(self, *flags: str) -> Server: ...


@pytest.fixture
def start(tiny_model_dir: Path) -> Iterator[StartServer]:
    """What starts servers that end with the test."""
    seat = ("--replicas", "1", "--num-blocks", "64", "--threads", "1", "--max-num-seqs", "1")
    started: list[Server] = []

    def start(*flags: str) -> Server:
        started.append(Server(str(tiny_model_dir), *seat, *flags))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def assert_refuses(server: Server) -> None:
    """Health checks and new requests get a 503 that says when to come back."""
    asked = httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
    for answer in (httpx.get(f"{server.url}/health"), asked):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_replica"
        assert int(answer.headers["retry-after"]) >= 1


def output(server: Server) -> str:
    """What the server said after its greeting, when it has ended."""
    assert server.process.stdout is not None
    return server.process.stdout.read()


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_sigterm_lets_those_who_wait_end(start: StartServer) -> None:
    """vllm#24885: new requests 503, streams drain, exit 0 in time."""
    server = start("--drain-s", "200")
    backlog = Backlog(server, 16)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: httpx.get(f"{server.url}/health").status_code == 503, 60)
    assert_refuses(server)
    assert server.process.poll() is None
    assert backlog.ends() == {"whole": 16}
    assert server.process.wait(30) == 0
    assert "Stopped.\n" in output(server)
    eventually(lambda: not find(server.mark), 10)


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("again", [None, signal.SIGTERM])
def test_a_drain_has_an_end(start: StartServer, again: signal.Signals | None) -> None:
    """At its deadline, or at a second signal."""
    limit = "1" if again is None else "300"
    server = start("--drain-s", limit)
    folder = server.logs.parents[1]
    backlog = Backlog(server, 100)
    server.process.send_signal(signal.SIGTERM)
    if again is not None:
        eventually(lambda: httpx.get(f"{server.url}/health").status_code == 503, 60)
        server.process.send_signal(again)
    assert server.process.wait(60) == 0
    ends = backlog.ends()
    assert ends["cut"] > 0
    assert not ends["broken"]
    if again is None:
        assert re.search(r"\nStopped\. Requests that had not ended: \d+\.\n", output(server))
    eventually(lambda: not find(server.mark), 10)
    assert not folder.exists()


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_death_of_ray_is_noticed(start: StartServer) -> None:
    """Without it nothing goes on, but the command used to sit there for ever."""
    server = start()
    vital_ones = {one.name(): one for one in server.processes() if one.name() in VITAL}
    assert set(vital_ones) == set(VITAL)
    vital = vital_ones["gcs_server"]
    vital.kill()
    assert server.process.wait(60) == 1
    said = [line for line in output(server).splitlines() if line.startswith("tidegate serve: ")]
    assert len(said) == 1
    assert f"Ray has died: its process gcs_server ({vital.pid}) has ended (logs: " in said[0]
    eventually(lambda: not find(server.mark), 10)
    logs = Path(said[0].split("(logs: ")[1].removesuffix(")"))
    assert logs.exists()
    shutil.rmtree(logs.parents[1])


@pytest.mark.cluster
@pytest.mark.timeout(200)
def test_a_replica_that_cannot_start_is_one_line(tiny_model_dir: Path) -> None:
    """A pool beyond all memory fails in the replica's constructor, on the far side of Ray."""
    (port,) = free_ports(1)
    huge = ("--replicas", "1", "--num-blocks", "1000000000000", "--port", str(port))
    done = run(str(tiny_model_dir), *huge)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("tidegate serve: ")]
    assert len(lines) == 1
    assert "does not start" in lines[0]
    # Why is in the logs: they stay, and nothing else of the run does.
    logs = Path(lines[0].split("(logs: ")[1].removesuffix(")"))
    written = [log.read_text(errors="replace") for log in logs.rglob("*.log")]
    shutil.rmtree(logs.parents[1])
    assert any("1000000000000" in text or "Error" in text for text in written)


def test_bench_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in a package above this one and is imported by name."""
    with pytest.raises(SystemExit) as done:
        main(["bench", "--help"])
    assert done.value.code == 0
    assert "--only" in capsys.readouterr().out


def test_the_version_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith("tidegate ")

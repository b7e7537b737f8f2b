"""The command line: its flags, its one-line errors, and that it leaves nothing behind."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from deployments import cli
from deployments.cli import greeting, main, parser
from deployments.config import ServeConfig
from deployments.launch import free_ports
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


def test_the_greeting_never_shows_the_key() -> None:
    assert "secret" not in greeting(ServeConfig.of({"api_key": "secret"}), "/logs")


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
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(tiny_model_dir: Path, end: signal.Signals) -> None:
    """ray#31451: Ctrl-C, or the driver is killed, with a stream open."""
    server = Server(str(tiny_model_dir), "--replicas", "1", "--num-blocks", "32", "--threads", "1")
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
    folder = Path(server.output.split("(logs: ")[1].split(";")[0]).parents[1]
    eventually(lambda: not folder.exists(), 10)
    stream.join(10)
    server.stop()


def _read(url: str, body: dict[str, object]) -> None:
    while True:
        try:
            httpx.post(url, json=body, timeout=10)
        except httpx.HTTPError:
            return


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

"""The command line: ``tidegate serve`` and ``top``, and the commands of the experiments."""

import argparse
import importlib
import os
import shlex
import shutil
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from deployments import top
from deployments.chat_template import with_template
from deployments.closing import Closing
from deployments.config import ConfigError, ServeConfig
from deployments.failures import Broken, LaunchError
from deployments.flags import Parser, add_settings, help_of
from deployments.gpus import gpus_by_node, require_gpus
from deployments.keys import with_access
from deployments.launch import LocalCluster, left_open, require_port, run_app, url, wait_ready
from deployments.policy_source import with_policies
from deployments.settings import API_KEY_VARIABLE
from engine.loader import resolve
from engine.model_info import ModelError, model_info

# Command -> package of the experiments, which stand above this one, and what it does.
_EXPERIMENTS = {
    "simulate": ("simulator", "try a load on any number of replicas, without a server"),
    "replay": ("replay", "send a load to a server in real time, and report as simulate does"),
    "study": ("studies", "compare placement, priorities and more, in simulations"),
    "bench": ("bench", "measure the engine, the router and what HTTP costs"),
}

_QUESTION = "What is the capital of France?"
_URL = "http://127.0.0.1:8000"


class Stop(KeyboardInterrupt):
    """SIGINT or SIGTERM came. What Ray's C++ raises instead, a plain one, is as good.

    Attributes:
        gently: it was SIGTERM, which lets requests end; Ctrl-C does not.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.gently = number == signal.SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _EXPERIMENTS:
        package, _ = _EXPERIMENTS[arguments[0]]
        experiment = importlib.import_module(f"experiments.{package}.command")
        return int(experiment.main(arguments[1:]))
    options = parser().parse_args(arguments)
    if options.command == "top":
        return _top(options)
    settings = {k: v for k, v in vars(options).items() if k in ServeConfig.model_fields}
    try:
        code = serve(ServeConfig.of(settings, os.environ), keep_logs=options.keep_logs)
    except (ConfigError, ModelError, LaunchError) as error:
        print(f"tidegate serve: {error}", file=sys.stderr, flush=True)
        code = 1
    if left_open():
        os._exit(code)
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser; ``serve`` has a flag for every setting of ``ServeConfig``."""
    root = Parser(prog="tidegate", description="Serve one language model from many replicas.")
    root.add_argument("--version", action="version", version=f"tidegate {version('tidegate')}")
    commands = root.add_subparsers(dest="command", required=True, parser_class=Parser)
    command = commands.add_parser(
        "serve",
        help="serve a model until Ctrl-C",
        description="Serve a model until Ctrl-C or SIGTERM. The logs go with the server, unless "
        "something failed or --keep-logs is given.",
    )
    command.add_argument(
        "--keep-logs", action="store_true", help="Leave the folder with the logs, and say where."
    )
    command.add_argument("model", metavar="MODEL", nargs="?", help=help_of("model"))
    add_settings(command, [name for name in ServeConfig.model_fields if name != "model"])
    _add_top(commands.add_parser("top", help="watch a server: its replicas, queue and times"))
    for name, (_, what) in _EXPERIMENTS.items():
        commands.add_parser(name, help=what)
    return root


def _add_top(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", default=_URL, help="the server's address")
    command.add_argument("--api-key", help=f"its key; default: the variable {API_KEY_VARIABLE}")
    command.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="N", help="seconds between two looks"
    )
    command.add_argument(
        "--once", action="store_true", help="print what there is now and end; so it does in a pipe"
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 0.1 to 3600, not {text}")
    return value


def _top(options: argparse.Namespace) -> int:
    key = options.api_key or os.environ.get(API_KEY_VARIABLE)
    return top.run(top.Options(options.url, key, options.interval, options.once), Console())


def serve(config: ServeConfig, *, keep_logs: bool = False) -> int:
    """Serve until SIGINT, which stops everything at once, or SIGTERM, which drains first.

    Args:
        config: what to serve, and how.
        keep_logs: leave the logs there, and say where.

    Raises:
        ModelError: the model cannot be read.
        ConfigError: the context asked for is longer than the model's, or the key file, the chat
            template or a policy of the operator's own is wrong.
        LaunchError: something does not start, or Ray dies.
    """
    config = with_policies(with_template(with_access(config)))
    said = ["Stopped."]
    _on_signals(_stop)
    try:
        _check_model(config)
        require_port(config.host, config.port)
        with LocalCluster(keep_logs=keep_logs) as cluster:
            replicas = max(1, config.fewest_replicas)
            print(f"Starting {replicas} replicas of {config.name} …", flush=True)
            try:
                _start(cluster, config)
                print(greeting(config, str(cluster.logs), command(), os.environ), flush=True)
                if cut := _serve_until_told(cluster, config):
                    said.append(f"Requests that had not ended: {cut}.")
            except Broken as error:
                error.logs = cluster.logs
                raise
            finally:
                # Whatever ended it, nothing interrupts the clean-up.
                _on_signals(signal.SIG_IGN)
                if keep_logs:
                    said.append(f"Logs: {cluster.logs}")
    except KeyboardInterrupt:
        pass
    print(*said, flush=True)
    return 0


def _start(cluster: LocalCluster, config: ServeConfig) -> None:
    cluster.start(config)
    # Ray has put its own handlers in place.
    _on_signals(_stop)
    require_gpus(config, gpus_by_node())
    cluster.watch.run(lambda: run_app(config))
    cluster.watch.run(lambda: wait_ready(config))


def _serve_until_told(cluster: LocalCluster, config: ServeConfig) -> int:
    """Return how many requests are cut by what follows.

    Raises:
        Stop: at once; nobody knows how many are cut.
        RayDied: there is nothing left that could serve.
    """
    try:
        cluster.watch.wait(Future())
    except Stop as stop:
        if not stop.gently:
            raise
    _on_signals(_stop)  # the next one stops at once
    print(f"Draining for {config.drain_s:g} s at most; Ctrl-C stops at once.", flush=True)
    closing = Closing(cluster.proxy_folder)
    try:
        cluster.watch.wait(cluster.watch.call(closing.run), config.drain_s)
    finally:
        closing.stop()
    return closing.left or 0


def greeting(config: ServeConfig, logs: str, command: str, environ: Mapping[str, str]) -> str:
    """Return what is printed when everything runs: the address and a request to try.

    Args:
        config: what runs.
        logs: where its logs are.
        command: how a shell calls this program.
        environ: environment variables, which other terminals are taken to have too.
    """
    key, url_ = "", url(config)
    top_flags = [] if url_ == _URL else ["--url", url_]
    if config.key is not None and config.key == environ.get(API_KEY_VARIABLE):
        key = f"${API_KEY_VARIABLE}"
    elif config.key is not None or config.key_file is not None:
        key = "KEY"
        top_flags += ["--api-key", key]
    header = f' -H "Authorization: Bearer {key}"' if key else ""
    body = f'{{"messages": [{{"role": "user", "content": "{_QUESTION}"}}], "temperature": 0}}'
    return (
        f"{config.name} is served at {url_}/v1  (logs: {logs}; Ctrl-C stops it)\n"
        f"Live: {url_}/dashboard, or in a terminal: {command} {shlex.join(['top', *top_flags])}\n\n"
        f"  curl {url_}/v1/chat/completions{header} "
        f"-H 'Content-Type: application/json' -d '{body}'\n"
    )


def command() -> str:
    """Return how a shell calls this program again."""
    called = sys.argv[0]
    if Path(called).name != "tidegate":
        return f"{shlex.quote(sys.executable)} -m deployments.cli"
    return "tidegate" if shutil.which("tidegate") == called else shlex.quote(called)


def _check_model(config: ServeConfig) -> None:
    info = model_info(resolve(config.model))
    if config.max_model_len is not None and config.max_model_len > info.max_model_len:
        raise ConfigError(
            f"max_model_len must be at most the model's {info.max_model_len}, "
            f"not {config.max_model_len}"
        )


def _on_signals(action: Callable[[int, types.FrameType | None], Any] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, action)


def _stop(number: int, frame: types.FrameType | None) -> None:
    # Once: a second signal must not interrupt the clean-up.
    _on_signals(signal.SIG_IGN)
    raise Stop(number)


if __name__ == "__main__":
    sys.exit(main())

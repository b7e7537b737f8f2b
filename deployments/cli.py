"""The command line: ``tidegate serve`` and ``tidegate bench``."""

import argparse
import importlib
import os
import signal
import sys
import types
import typing
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from typing import Any, NoReturn

from deployments.config import ConfigError, ServeConfig
from deployments.launch import (
    LaunchError,
    LocalCluster,
    StartFailed,
    require_port,
    run_app,
    url,
    wait_ready,
)
from engine.loader import resolve
from engine.model_info import ModelError, model_info

_QUESTION = "What is the capital of France?"


class Stop(BaseException):
    """SIGINT or SIGTERM came. Not an Exception: nothing may swallow it."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["bench"]:
        # By name: experiments stand above this package.
        return int(importlib.import_module("experiments.bench.command").main(arguments[1:]))
    options = parser().parse_args(arguments)
    settings = {k: v for k, v in vars(options).items() if k in ServeConfig.model_fields}
    try:
        return serve(ServeConfig.of(settings, os.environ))
    except (ConfigError, ModelError, LaunchError) as error:
        print(f"tidegate serve: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser; ``serve`` has a flag for every setting of ``ServeConfig``."""
    top = _Parser(prog="tidegate", description="Serve one language model from many replicas.")
    top.add_argument("--version", action="version", version=f"tidegate {version('tidegate')}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    command = commands.add_parser("serve", help="serve a model until Ctrl-C")
    for name, field in ServeConfig.model_fields.items():
        text = (field.description or "").replace("%", "%%").replace("`", "")
        if name == "model":
            command.add_argument("model", metavar="MODEL", nargs="?", help=text)
        else:
            flag = f"--{name.replace('_', '-')}"
            command.add_argument(flag, help=text, default=None, **_value(field.annotation))
    commands.add_parser("bench", help="measure the engine, the router and what HTTP costs")
    return top


def serve(config: ServeConfig) -> int:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ModelError: the model cannot be read.
        ConfigError: the context asked for is longer than the model's.
        LaunchError: something does not start.
    """
    _on_signals()
    try:
        _check_model(config)
        require_port(config.host, config.port)
        with LocalCluster() as cluster:
            print(f"Starting {config.replicas} replicas of {config.name} …", flush=True)
            _start(cluster, config)
            print(greeting(config, str(cluster.logs)), flush=True)
            while True:
                signal.pause()
    except Stop:
        print("Stopped.", flush=True)
        return 0


def _start(cluster: LocalCluster, config: ServeConfig) -> None:
    try:
        cluster.start(config)
        # Ray has put its own handlers in place.
        _on_signals()
        run_app(config)
        wait_ready(config)
    except StartFailed as error:
        raise StartFailed(f"{error} (logs: {cluster.logs})") from error


def greeting(config: ServeConfig, logs: str) -> str:
    """Return what is printed when everything runs: the address and a request to try."""
    key = "" if config.key is None else ' -H "Authorization: Bearer $TIDEGATE_API_KEY"'
    body = f'{{"messages": [{{"role": "user", "content": "{_QUESTION}"}}], "temperature": 0}}'
    return (
        f"{config.name} is served at {url(config)}/v1  (logs: {logs}; Ctrl-C stops it)\n\n"
        f"  curl {url(config)}/v1/chat/completions{key} "
        f"-H 'Content-Type: application/json' -d '{body}'\n"
    )


def _check_model(config: ServeConfig) -> None:
    info = model_info(resolve(config.model))
    if config.max_model_len is not None and config.max_model_len > info.max_model_len:
        raise ConfigError(
            f"max_model_len must be at most the model's {info.max_model_len}, "
            f"not {config.max_model_len}"
        )


def _on_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, frame: types.FrameType | None) -> None:
    # Once: a second signal must not interrupt the clean-up.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Stop


def _value(annotation: Any) -> dict[str, Any]:
    """Return argparse's options for a flag of this type."""
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kind = kinds[0] if union else annotation
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is typing.Literal:
        return {"choices": list(typing.get_args(kind))}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"choices": [member.value for member in kind]}
    if kind in (int, float):
        return {"type": kind, "metavar": "N"}
    return {"metavar": "TEXT"}


if __name__ == "__main__":
    sys.exit(main())

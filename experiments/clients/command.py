"""Command line: run the clients one after the other and write down what each saw."""

import argparse
import platform
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import httpx

from experiments.clients.client import Client, ClientFailed, Load, Outcome, Server
from experiments.clients.environment import Environment
from experiments.clients.known import CLIENTS
from experiments.clients.report import as_markdown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen clients; 0 only if each had every answer that it asked for.

    Args:
        argv: the command line without the program's name; the process's own if None.
    """
    args = parser().parse_args(argv)
    server = Server(args.url, args.model or _only_model(args.url), args.tokenizer)
    load = Load(args.requests, args.concurrency, args.prompt_tokens, args.output_tokens)
    outcomes = [_run(CLIENTS[name], server, load, args.work) for name in args.only]
    page = as_markdown(outcomes, load, f"{platform.machine()}, {date.today():%Y-%m-%d}")
    print(page)
    if args.write is not None:
        args.write.write_text(page)
    return 0 if all(outcome.complete(load) for outcome in outcomes) else 1


def _run(client: Client, server: Server, load: Load, work: Path) -> Outcome:
    print(f"{client.name}: making its environment …", file=sys.stderr, flush=True)
    environment = Environment(work.resolve() / client.name)
    environment.install(client)
    print(f"{client.name}: running …", file=sys.stderr, flush=True)
    try:
        return client.run(environment, server, load)
    except ClientFailed as error:
        print(f"{client.name}: {error}", file=sys.stderr, flush=True)
        return Outcome(client.name, client.version, 0, load.requests, 0, None, None)


def _only_model(url: str) -> str:
    answer = httpx.get(f"{url}/v1/models").raise_for_status().json()
    return str(answer["data"][0]["id"])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.clients", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=CLIENTS, default=list(CLIENTS), help="clients to run"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of a server that runs")
    parser.add_argument("--model", help="its name there; the one that the server lists")
    parser.add_argument(
        "--tokenizer", required=True, type=Path, help="folder with the model's tokenizer"
    )
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(".clients"),
        help="where the environments go; up to 9 GB, and they stay for the next run",
    )
    parser.add_argument("--write", type=Path, help="a Markdown file for the result")
    return parser

"""Options of ``tidegate replay`` that say where a load goes and how."""

import argparse
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from deployments.settings import API_KEY_VARIABLE
from experiments.arguments import number, whole
from experiments.loads.load import Load
from experiments.replay.manner import Manner
from experiments.replay.target import checked_key, read_keys

_OURS: Final = frozenset({"prompt", "stream", "stream_options", "max_tokens", "n", "model"})


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that `manner_of` reads, and ``--url``."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", default="http://127.0.0.1:8000", help="the server's address")
    group.add_argument("--api-key", help=f"its key; default: the variable {API_KEY_VARIABLE}")
    group.add_argument(
        "--tenant-keys",
        type=Path,
        metavar="FILE",
        help="YAML with the key of each tenant of the load, such as search: sk-7Qx4",
    )
    group.add_argument("--model", metavar="NAME", help="as the server calls it; default: its first")
    group.add_argument(
        "--timeout",
        type=number(1e-3, 1e6),
        default=600.0,
        metavar="S",
        help="give an answer up that is not complete after S seconds; default 600",
    )
    group.add_argument(
        "--max-connections",
        type=whole(1, 10**6),
        metavar="N",
        help="a request that would be one more fails; default: as many as the system allows",
    )
    group.add_argument(
        "--vocab",
        type=whole(1, 10**6),
        default=1000,
        metavar="N",
        help="token ids of prompts are below N; default 1000, which most models have",
    )
    group.add_argument(
        "--prompt-seed",
        type=whole(0, 2**63 - 1),
        metavar="N",
        help="the same prompts as another run with N; default: drawn anew, so that a server's "
        "prefix cache holds nothing of an earlier run",
    )
    group.add_argument(
        "--text",
        action="store_true",
        help="prompts of words, about as long, for a server that takes no token ids",
    )
    group.add_argument(
        "--vllm-priority",
        action="store_true",
        help="send priorities with their sign turned: the server goes by the lower, as vLLM does",
    )
    group.add_argument(
        "--body", type=_fields, default={}, metavar="JSON", help="more fields of each request"
    )


def manner_of(options: argparse.Namespace, load: Load) -> Manner:
    """Return how the load is to be sent.

    Raises:
        TargetError: a key cannot be one, or a tenant has none.
    """
    key = options.api_key or os.environ.get(API_KEY_VARIABLE) or None
    keys = {} if options.tenant_keys is None else read_keys(options.tenant_keys, load)
    return Manner(
        api_key=None if key is None else checked_key(key, "the API key"),
        tenant_keys=keys,
        model=options.model,
        retries=options.retries or 0,
        first_token_s=options.first_token_s,
        end_s=options.end_s,
        timeout_s=options.timeout,
        max_connections=options.max_connections,
        vocab=options.vocab,
        text=options.text,
        prompt_seed=secrets.randbits(32) if options.prompt_seed is None else options.prompt_seed,
        lower_first=options.vllm_priority,
        more=options.body,
        seed=options.seed,
    )


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text!r}")
    if ours := sorted(_OURS & fields.keys()):
        raise argparse.ArgumentTypeError(f"must leave out {ours[0]!r}, which the load decides")
    return fields

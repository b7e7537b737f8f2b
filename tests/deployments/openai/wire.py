"""Requests and a tokenizer that the tests of the wire share."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from deployments.openai import chat, completions
from deployments.openai.chat import ChatCall
from deployments.openai.completions import CompletionCall
from deployments.openai.served import Served

SERVED = Served("tiny", max_model_len=100, vocab_size=300)
BOS = 256
NOW = 1_700_000_000.9


class ByteTokenizer:
    """One token a byte, and a beginning-of-sequence token when special tokens are added."""

    chat_template = "{{ messages }}"

    def __init__(self) -> None:
        self.conversations: list[list[dict[str, str]]] = []

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        self.conversations.append(conversation)
        turns = "".join(f"{turn['role'][0]}:{turn['content']};" for turn in conversation)
        return turns + ("a:" if add_generation_prompt else "")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(id for id in token_ids if id != BOS).decode(errors="replace")


def chat_call(
    fields: dict[str, Any] | bytes,
    headers: dict[str, str] | None = None,
    served: Served = SERVED,
    tokenizer: Any = None,
    seed: int = 1,
) -> ChatCall:
    """Prepare a chat request; without messages it gets one."""
    if isinstance(fields, dict) and "messages" not in fields:
        fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    rng = random.Random(seed)
    return chat.prepare(body, headers or {}, tokenizer or ByteTokenizer(), served, rng, NOW)


def completion_call(
    fields: dict[str, Any] | bytes,
    headers: dict[str, str] | None = None,
    served: Served = SERVED,
    seed: int = 1,
) -> CompletionCall:
    """Prepare a completions request; without a prompt it gets one."""
    if isinstance(fields, dict) and "prompt" not in fields:
        fields = {"prompt": "hi", **fields}
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    rng = random.Random(seed)
    return completions.prepare(body, headers or {}, ByteTokenizer(), served, rng, NOW)


def events_of(stream: bytes) -> Iterator[str]:
    """Read events as a strict client does: by LF, one space, blank lines between events."""
    assert b"\r" not in stream
    assert stream.endswith(b"\n\n")
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        lines = block.split("\n")
        assert len(lines) == 1, f"an event of several lines: {block!r}"
        assert lines[0].startswith("data: ")
        yield lines[0].removeprefix("data: ")


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    """Parse a whole stream; it must end with [DONE]."""
    *chunks, done = events_of(stream)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]

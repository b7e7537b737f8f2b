"""deployments.openai.length: what cannot fit is refused before it is tokenised."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from deployments.openai import chat, completions
from deployments.openai.errors import BadRequest
from deployments.openai.length import longest_token, require_possible
from engine.loader import load_tokenizer
from tests.deployments.openai.wire import SERVED

BOUNDED = dataclasses.replace(SERVED, longest_token=4)


def test_a_text_is_refused_from_the_length_on_that_no_tokens_can_shorten() -> None:
    """A prompt of megabytes kept a core busy for seconds before its 400."""
    require_possible("x" * (4 * (BOUNDED.max_model_len - 1)), BOUNDED, "prompt")
    with pytest.raises(BadRequest, match="maximum context length is 100 tokens") as refused:
        require_possible("x" * (4 * BOUNDED.max_model_len - 3), BOUNDED, "prompt")
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")


def test_without_a_bound_everything_is_tokenised() -> None:
    require_possible("x" * 1_000_000, SERVED, "prompt")


class Untouched:
    """A tokenizer that must not be asked."""

    chat_template = "there is one"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return messages[0]["content"]

    def encode(self, text: str, **_: object) -> list[int]:
        raise AssertionError("tokenised")


@pytest.mark.parametrize(
    ("prepare", "body"),
    [
        (completions.prepare, b'{"prompt": ["a", "%s"]}'),
        (chat.prepare, b'{"messages": [{"role": "user", "content": "%s"}]}'),
    ],
)
def test_both_endpoints_refuse_before_they_tokenise(
    prepare: Callable[..., Any], body: bytes
) -> None:
    with pytest.raises(BadRequest, match="or more"):
        prepare(body % (b"x" * 1000), {}, Untouched(), BOUNDED, None, 0.0)


def test_the_longest_token_bounds_real_texts(tiny_model_dir: Path) -> None:
    tokenizer = load_tokenizer(tiny_model_dir)
    longest = longest_token(tokenizer)
    assert longest is not None
    for text in ("plain words", "naïve 日本語 🌊", "</s>" * 9, "\t\n  " * 50):
        assert len(text) <= longest * len(tokenizer.encode(text, add_special_tokens=False))


def test_a_tokenizer_that_rewrites_the_text_gives_no_bound(tiny_model_dir: Path) -> None:
    """It could make one token of any number of characters."""
    tokenizer = load_tokenizer(tiny_model_dir)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" ", "")
    assert longest_token(tokenizer) is None
    assert longest_token(object()) is None

"""How long a text may be before it is worth tokenising: megabytes take seconds."""

from typing import Any

from deployments.openai.errors import BadRequest
from deployments.openai.served import Served


def longest_token(tokenizer: Any) -> int | None:
    """Return how many characters one token stands for at most, None if that is not known.

    Known for byte-level tokenizers that do not rewrite the text first: each character is
    one byte or more, and a token's name has a letter for each byte.

    Args:
        tokenizer: a fast tokenizer of transformers.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.normalizer is not None:
        return None
    if type(backend.decoder).__name__ != "ByteLevel":
        return None
    return max(len(name) for name in backend.get_vocab(with_added_tokens=True))


def require_possible(text: str, served: Served, field: str) -> None:
    """Refuse a text that is too long whatever its tokens turn out to be.

    Raises:
        BadRequest: code context_length_exceeded.
    """
    if served.longest_token is None:
        return
    least = -(-len(text) // served.longest_token)
    if least >= served.max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {served.max_model_len} tokens, but the "
            f"prompt has {least} or more, which leaves no room for an answer.",
            field,
            "context_length_exceeded",
        )

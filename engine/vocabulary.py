"""Vocabulary: a model's tokens as the grammar library asks for them."""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from engine.text import TokenBytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Vocabulary:
    """A tokenizer as llguidance asks for it: what each token adds to a text, and how a text is cut.

    llguidance can read tokenizer.json itself, but takes each added token that looks like
    ``<this>`` for a special one, which is no text; here a token adds what the detokenizer
    says it does.
    """

    bos_token_id = None

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", vocab: int, eos_token_ids: Sequence[int]
    ) -> None:
        """Look each token up: see :func:`grammar_tokens`."""
        raw: Tokenizer = copy(tokenizer.backend_tokenizer)
        raw.no_padding()
        raw.no_truncation()
        raw.encode_special_tokens = True  # the name of a special token, in a text, is text
        self._raw = raw
        self.eos_token_id = eos_token_ids[0]
        added = raw.get_added_tokens_decoder().items()
        self.special_token_ids = [id for id, token in added if token.special]
        special, texts = frozenset(self.special_token_ids), TokenBytes(raw)
        self.tokens = [
            (raw.id_to_token(id) or "").encode() if id in special else texts.of(id, False) or b""
            for id in range(max(vocab, raw.get_vocab_size(with_added_tokens=True)))
        ]

    def __call__(self, text: bytes) -> list[int]:
        """Cut a text into tokens."""
        encoding = self._raw.encode(text.decode(errors="replace"), add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def grammar_tokens(
    tokenizer: "PreTrainedTokenizerFast", vocab: int, eos_token_ids: Sequence[int]
) -> LLTokenizer:
    """Return what llguidance needs to know of a model's tokens.

    Args:
        tokenizer: the model's, a fast one.
        vocab: width of the model's logits; may exceed the tokenizer's vocabulary.
        eos_token_ids: at least one.
    """
    vocabulary = Vocabulary(tokenizer, vocab, eos_token_ids)
    return LLTokenizer(
        TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=list(eos_token_ids)
    )

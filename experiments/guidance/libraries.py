"""The two libraries behind one interface."""

import importlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from experiments.guidance.cases import Case


class Refused(Exception):
    """A library does not take a grammar."""


class Matcher(Protocol):
    """How far an answer has got in a grammar."""

    def allowed(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The mask: int32 words, a bit for each token."""
        ...

    def push(self, token: int) -> bool:
        """Go on by a token; False if the grammar does not allow it."""
        ...

    def finished(self) -> bool:
        """Whether nothing may follow."""
        ...


class Library(Protocol):
    """What is compared."""

    name: str
    version: str

    def compile(self, case: Case) -> Any:
        """Return what matchers are made from.

        Raises:
            Refused: the library does not take it.
        """
        ...

    def matcher(self, compiled: Any) -> Matcher:
        """Return a matcher at the grammar's start."""
        ...


class LlguidanceLibrary:
    """llguidance, as the engine uses it."""

    name = "llguidance"

    def __init__(self, tokenizer: Any, vocab: int, eos: Sequence[int]) -> None:
        self._inner = importlib.import_module("llguidance")
        self.version = str(self._inner.__version__)
        guidance = importlib.import_module("engine.guidance")
        self._guides = guidance.Guides(tokenizer, vocab, eos, kept=0)
        self._refusal = importlib.import_module("engine.request").InvalidParam

    def compile(self, case: Case) -> Any:
        make = self._inner.LLMatcher
        if case.schema is None:
            grammar = make.grammar_from_regex(case.regex)
        else:
            grammar = make.grammar_from_json_schema(json.dumps(case.schema))
        try:
            self._guides.matcher(grammar)
        except self._refusal as error:
            raise Refused(str(error)) from error
        return grammar

    def matcher(self, compiled: Any) -> Matcher:
        return _Llguidance(self._guides.matcher(compiled))


class _Llguidance:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def allowed(self) -> Any:
        return self._inner.mask()

    def push(self, token: int) -> bool:
        try:
            self._inner.push(token)
        except RuntimeError:
            return False
        return True

    def finished(self) -> bool:
        return bool(self._inner.finished)


class XgrammarLibrary:
    """xgrammar, with any blanks in JSON and other properties where the schema allows them."""

    name = "xgrammar"

    def __init__(self, tokenizer: Any, vocab: int, eos: Sequence[int]) -> None:
        self._inner = importlib.import_module("xgrammar")
        self.version = importlib.import_module("importlib.metadata").version("xgrammar")
        info = self._inner.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab, stop_token_ids=list(eos)
        )
        self._compiler = self._inner.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._vocab = vocab

    def compile(self, case: Case) -> Any:
        try:
            if case.schema is None:
                return self._compiler.compile_regex(case.regex)
            return self._compiler.compile_json_schema(json.dumps(case.schema), strict_mode=False)
        except Exception as error:
            raise Refused(str(error)) from error

    def matcher(self, compiled: Any) -> Matcher:
        bits = self._inner.allocate_token_bitmask(1, self._vocab)
        return _Xgrammar(self._inner.GrammarMatcher(compiled), bits)


class _Xgrammar:
    def __init__(self, inner: Any, bits: Any) -> None:
        self._inner = inner
        self._bits = bits

    def allowed(self) -> Any:
        # It leaves the bits alone where it would set them all.
        if not self._inner.fill_next_token_bitmask(self._bits):
            self._bits.fill_(-1)
        return self._bits[0].numpy()

    def push(self, token: int) -> bool:
        return bool(self._inner.accept_token(token))

    def finished(self) -> bool:
        return bool(self._inner.is_terminated())

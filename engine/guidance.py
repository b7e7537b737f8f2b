"""Guidance: which tokens may come next if the answer is to match a grammar.

llguidance does the work (an Earley parser over a lexer of regular-expression derivatives;
github.com/guidance-ai/llguidance).  Here it is bound to one model: a mask as wide as its
logits, all its end-of-sequence tokens, limits on what a grammar may cost.

A matcher's state is a function of the grammar and the tokens alone, so a request that
moves elsewhere goes on under the same masks once its tokens are replayed.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from engine.request import InvalidParam, require
from engine.time_budget import OverBudget, TimeBudget
from engine.vocabulary import grammar_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]

_T = TypeVar("_T")

# Characters.  A megabyte of schema takes llguidance over a second.
MAX_GRAMMAR = 128 * 1024
# The parser's items for one mask.  They may all have to be compared with each other, as in
# ``s: s s s | "a"``, where 3,000 take some 20 ms and 5,000 take 90.  A JSON schema cannot be as
# ambiguous: its brackets say where a value ends.  There 250 optional properties of any type
# need some 10,000, which take 2.5 ms.
_MAX_ITEMS = 3_000
_MAX_JSON_ITEMS = 20_000
# What those limits do not see: seconds of processor time, which all requests of a step wait.
_AT_ONCE_S = 0.25
_PER_TOKEN_S = 0.005


class GuidanceError(RuntimeError):
    """A matcher cannot go on: only its own request fails.

    Attributes:
        reason: a limit was met, the time for it is spent, or a token was pushed that its
            mask does not hold.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the grammar allows no going on: {self.reason}"


def _limits(grammar: str) -> LLParserLimits:
    """Return what one mask may cost, in llguidance's units.

    The lexer's fuel is about 14,000 a millisecond.
    """
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=_MAX_JSON_ITEMS if _is_json_schema(grammar) else _MAX_ITEMS,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def _is_json_schema(grammar: str) -> bool:
    """Whether the grammar is JSON schemas and nothing else."""
    try:
        parts = json.loads(grammar)["grammars"]
        return bool(parts) and all(
            part.get("json_schema") is not None and part.get("lark_grammar") is None
            for part in parts
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False  # llguidance will say what is wrong with it


def check_grammar(grammar: str) -> None:
    """Check a grammar without a model; special tokens in it are not looked up.

    Raises:
        InvalidParam: ``grammar`` is none, cannot be met, or is too large.
    """
    _require_size(grammar)
    check = LLMatcher.validate_grammar_with_warnings
    try:
        bad, messages = _guarded(lambda: check(grammar, limits=_limits(grammar)))
    except GuidanceError as error:
        raise _invalid(grammar, error.reason) from None
    if bad:
        raise _invalid(grammar, messages[0])


class Guides:
    """Makes the matchers of one model; shares what they know of its vocabulary.

    Args:
        tokenizer: the model's, a fast one.
        vocab: width of the model's logits; may exceed the tokenizer's vocabulary.
        eos_token_ids: tokens that end an answer; any of them may, where the grammar may end.
        kept: grammars whose compiled form is kept for the next request that brings the same,
            such as the others of its ``n`` choices.
        clock: seconds; by default those that the calling thread has computed, so that no
            answer pays for what others do to the processor.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        vocab: int,
        eos_token_ids: Sequence[int],
        kept: int = 16,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._vocab = vocab
        # What is refused is not kept.  Nobody but `deep_copy` touches what is.
        self._compiled = lru_cache(kept)(self._compile)
        self._clock = clock
        self._tokens = grammar_tokens(tokenizer, vocab, eos_token_ids) if eos_token_ids else None

    def matcher(self, grammar: str, generated: Sequence[int] = ()) -> "Matcher":
        """Return a matcher at the start of ``grammar``, or after ``generated``.

        Args:
            grammar: as ``LLMatcher.grammar_from_json_schema`` and its kin return it.
            generated: tokens of the answer that were made elsewhere.

        Raises:
            InvalidParam: the grammar is not one, cannot be met, or is too large;
                ``generated`` does not match it; the model has no token to end with.
        """
        matcher = self._begin(self._compiled(grammar).deep_copy())
        try:
            for token in generated:
                matcher.push(token)
        except GuidanceError as error:
            limit = f"tokens that match the grammar ({error.reason})"
            raise InvalidParam("generated", len(generated), limit) from None
        return matcher

    def _compile(self, grammar: str) -> LLMatcher:
        _require_size(grammar)
        tokens = self._tokens
        if tokens is None:
            raise _invalid(grammar, "this model has no end-of-sequence token")
        try:
            limits = _limits(grammar)
            inner = _guarded(lambda: LLMatcher(tokens, grammar, log_level=0, limits=limits))
            if inner.is_error():
                raise _invalid(grammar, inner.get_error())
            self._try(inner.deep_copy())
        except GuidanceError as error:
            raise _invalid(grammar, error.reason) from None
        return inner

    def _try(self, inner: LLMatcher) -> None:
        """Go one token into the grammar.

        That it has no text at all, as one that only calls itself, shows there, and that an
        object has too many properties, which it names after its bracket.

        Raises:
            GuidanceError: it has none, or a limit is met.
        """
        matcher = self._begin(inner)
        allowed = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        matcher.push(int(allowed.argmax()))
        if not matcher.finished:
            matcher.mask()

    def _begin(self, inner: LLMatcher) -> "Matcher":
        tokens = 0 if self._tokens is None else self._tokens.vocab_size
        return Matcher(inner, tokens, self._vocab, self._clock)


class Matcher:
    """How far one answer has got in its grammar.  Made by :class:`Guides`; one thread at a time."""

    __slots__ = ("_budget", "_clock", "_inner", "_mask", "_vocab")

    def __init__(
        self, inner: LLMatcher, tokens: int, vocab: int, clock: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._vocab = vocab
        self._clock = clock
        self._budget = TimeBudget(_AT_ONCE_S, _PER_TOKEN_S)
        # As wide as llguidance writes, which may be more than the logits are.
        self._mask: Mask = np.zeros(_words(max(tokens, vocab)), dtype=np.int32)

    def mask(self) -> Mask:
        """Return the tokens that may come next; an end-of-sequence token where it may end.

        Returns:
            int32 [ceil(vocab / 32)]: bit t % 32 of word t // 32 is token t.  Overwritten by
            the next call.

        Raises:
            GuidanceError: finding out takes more than one mask may cost.
        """
        mask = self._mask
        mask.fill(0)
        self._work(lambda: self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes))
        mask = mask[: _words(self._vocab)]
        if self._vocab % 32:
            mask[-1] &= (1 << self._vocab % 32) - 1
        return mask

    def push(self, token: int) -> None:
        """Take the token that was chosen.

        Raises:
            GuidanceError: the grammar does not allow it here, or it takes too long.
        """
        self._budget.add_token()
        self._work(lambda: self._inner.consume_token(token))

    @property
    def finished(self) -> bool:
        """Whether nothing but an end-of-sequence token may follow, or has followed."""
        return bool(self._inner.is_stopped())

    def _work(self, work: Callable[[], object]) -> None:
        """Do ``work``, unless the time for it is spent.

        Raises:
            GuidanceError: it was, or is now; or ``work`` failed.
        """
        try:
            self._budget.spend(0.0)
            began = self._clock()
            _guarded(work)
            self._budget.spend(self._clock() - began)
        except OverBudget as error:
            raise GuidanceError(str(error)) from None
        if self._inner.is_error():
            raise GuidanceError(_sentence(self._inner.get_error()))


def _require_size(grammar: str) -> None:
    limit = f"at most {MAX_GRAMMAR} characters"
    require(len(grammar) <= MAX_GRAMMAR, "grammar", f"{len(grammar)} characters", limit)


def _invalid(grammar: str, reason: str) -> InvalidParam:
    limit = f"one that can be enforced: {_sentence(reason)}"
    return InvalidParam("grammar", f"one of {len(grammar)} characters", limit)


def _sentence(reason: str) -> str:
    """llguidance's message without its report of the parser's state."""
    if reason.startswith("NoExtension"):
        return "no text matches it"
    return reason.split("\n<")[0].strip()


def _guarded(work: Callable[[], _T]) -> _T:
    """Do ``work`` in llguidance; a panic there, which is no Exception, becomes an error here.

    Raises:
        GuidanceError: it panicked.
    """
    try:
        return work()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise GuidanceError("it is too complex") from error


def _words(bits: int) -> int:
    return -(-bits // 32)

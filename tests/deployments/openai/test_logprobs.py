"""Log-probabilities as clients see them: names, bytes and places of tokens, and no infinity."""

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from deployments.openai.logprobs import ChatLedger, CompletionLedger
from deployments.openai.sse import compact
from deployments.openai.tokens import TokenNames
from deployments.openai.view import View
from engine.request import FinishReason
from engine.submission import Detail, TokenLogprobs
from tests.deployments.openai.wire import chat_call, completion_call


def byte_tokenizer() -> Any:
    """One token a byte, named by its number, and an end-of-sequence token, 256."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")


def piece_tokenizer() -> Any:
    """Words that bring their own space, as SentencePiece has them, and byte tokens."""
    vocab = {"<unk>": 0, "▁hello": 1, "▁world": 2, "s": 3, "<0xE2>": 4, "<0x82>": 5, "<0xAC>": 6}
    raw = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw)


TOKENIZER = byte_tokenizer()
NAMES = TokenNames(TOKENIZER)
EOS = TOKENIZER.eos_token_id
ID = {bytes(NAMES.of(token, False)[1]): token for token in range(len(TOKENIZER)) if token != EOS}
PIECES = TokenNames(piece_tokenizer())


def ids(text: str | bytes) -> list[int]:
    raw = text.encode() if isinstance(text, str) else text
    return [ID[bytes([byte])] for byte in raw]


def told(tokens: list[int], logprob: float = -1.0, top: tuple[int, ...] = ()) -> Detail:
    return Detail(
        logprobs=tuple(
            TokenLogprobs(token, logprob, tuple((other, -0.5) for other in top)) for token in tokens
        )
    )


# ---- names of tokens ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "name", "raw"),
    [
        (ID[b"a"], "a", b"a"),
        (ID[b" "], " ", b" "),
        (ID[b"\xe2"], "bytes:\\xe2", b"\xe2"),
        (EOS, "</s>", b"</s>"),
        (len(TOKENIZER) + 5, "", b""),  # the model's vocabulary may be padded
    ],
)
def test_tokens_have_names_and_bytes(token: int, name: str, raw: bytes) -> None:
    assert NAMES.of(token, False) == (name, list(raw))
    assert NAMES.of(token, True) == (name, list(raw))


def test_the_first_word_has_no_space_of_its_own() -> None:
    assert PIECES.of(1, True)[0] == "hello"
    assert PIECES.of(1, False)[0] == " hello"
    assert PIECES.of(4, False) == ("bytes:\\xe2", [0xE2])


# ---- the two shapes -------------------------------------------------------------------------


def test_chat_has_an_object_for_each_token() -> None:
    ledger = ChatLedger(NAMES)
    ledger.add(told(ids("h"), -0.25, top=(ID[b"h"], ID[b"\xe2"])))
    ledger.add(told([EOS]))
    found = ledger.take()
    assert found == {
        "content": [
            {
                "token": "h",
                "logprob": -0.25,
                "bytes": [104],
                "top_logprobs": [
                    {"token": "h", "logprob": -0.5, "bytes": [104]},
                    {"token": "bytes:\\xe2", "logprob": -0.5, "bytes": [0xE2]},
                ],
            },
            {"token": "</s>", "logprob": -1.0, "bytes": list(b"</s>"), "top_logprobs": []},
        ],
        "refusal": None,
    }
    ChoiceLogprobs.model_validate(found, strict=True)
    assert ledger.take() is None


def test_completions_have_four_lists() -> None:
    ledger = CompletionLedger(NAMES)
    ledger.add(told(ids("h"), -0.25, top=(ID[b"i"],)))
    ledger.add(told([EOS]))
    found = ledger.take()
    assert found == {
        "tokens": ["h", "</s>"],
        "token_logprobs": [-0.25, -1.0],
        "top_logprobs": [{"i": -0.5, "h": -0.25}, {"</s>": -1.0}],
        "text_offset": [0, 1],
    }
    Logprobs.model_validate(found, strict=True)
    assert ledger.take() is None


def test_an_echo_has_the_prompts_tokens_first_and_the_first_of_all_is_null() -> None:
    ledger = CompletionLedger(NAMES, ids("hé"), "hé")
    prompt = (None, *told(ids("é"), -2.0).logprobs)
    ledger.add(Detail(prompt_logprobs=prompt, logprobs=told(ids("x")).logprobs))
    ledger.add(told(ids("y")))
    found = ledger.take()
    assert found is not None
    assert found["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "x", "y"]
    assert found["token_logprobs"] == [None, -2.0, -2.0, -1.0, -1.0]
    assert found["top_logprobs"][0] is None
    assert found["text_offset"] == [0, 1, 1, 2, 3]


def test_of_two_tokens_with_one_name_the_likelier_is_shown() -> None:
    ledger = CompletionLedger(NAMES)
    unknown = len(TOKENIZER) + 1
    top = ((unknown, -0.5), (unknown + 1, -0.75))
    ledger.add(Detail(logprobs=(TokenLogprobs(unknown + 1, -0.75, top),)))
    found = ledger.take()
    assert found is not None
    assert found["top_logprobs"] == [{"": -0.5}]


@pytest.mark.parametrize("ledger", [ChatLedger, CompletionLedger])
@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e308])
def test_what_json_cannot_say_is_clamped(ledger: Any, value: float) -> None:
    """An infinity is not JSON: strict readers fail on the whole answer."""
    one = ledger(NAMES)
    top = ((ID[b"b"], value),)
    one.add(Detail(logprobs=(TokenLogprobs(ID[b"a"], value, top),)))
    text = compact(one.take())
    assert text.count("-9999.0") >= 2
    json.loads(text, parse_constant=pytest.fail)


@given(text=st.text(max_size=12), cuts=st.lists(st.integers(0, 40), max_size=5))
@settings(max_examples=200, deadline=None)
def test_places_and_bytes_are_those_of_the_text_however_it_is_cut(
    text: str, cuts: list[int]
) -> None:
    tokens = ids(text)
    edges = sorted({0, len(tokens), *(min(cut, len(tokens)) for cut in cuts)})
    completion, chat = CompletionLedger(NAMES, echo="éé"), ChatLedger(NAMES)
    offsets: list[int] = []
    raw: list[int] = []
    for begin, end in itertools.pairwise(edges):
        for ledger in (completion, chat):
            ledger.add(told(tokens[begin:end]))
        lists, objects = completion.take(), chat.take()
        assert lists is not None
        assert objects is not None
        offsets += lists["text_offset"]
        raw += [byte for entry in objects["content"] for byte in entry["bytes"]]
    assert bytes(raw) == text.encode()
    # A byte's place is that of the character it belongs to.
    assert offsets == [2 + at for at, char in enumerate(text) for _ in char.encode()]


# ---- what a client sees of a choice ---------------------------------------------------------


def test_a_plain_choice_needs_no_view() -> None:
    for call in (chat_call({}), completion_call({})):
        assert View.of(call, 0, NAMES) is None


def test_every_token_has_its_entry_while_its_text_is_held_back() -> None:
    call = chat_call({"logprobs": True})
    view = View.of(call, 0, NAMES)
    assert view is not None
    assert view.see("", None, told(ids("E"))) == ("", None)
    assert view.logprobs() is not None
    assert view.logprobs() is None
    assert view.see("END", FinishReason.STOP, told(ids("ND"))) == ("END", FinishReason.STOP)
    found = view.logprobs()
    assert found is not None
    assert [entry["token"] for entry in found["content"]] == ["N", "D"]


def test_an_echo_goes_out_once_before_the_text() -> None:
    call = completion_call({"prompt": "hi", "echo": True})
    view = View.of(call, 0, NAMES)
    assert view is not None
    assert view.see("", None, None) == ("hi", None)
    assert view.see("a", FinishReason.STOP, None) == ("a", FinishReason.STOP)
    assert view.logprobs() is None


@pytest.mark.parametrize("echo", [True, False])
def test_nothing_of_a_muted_choice_is_seen_but_its_prompt(echo: bool) -> None:
    call = completion_call({"prompt": ids("hi"), "echo": echo, "max_tokens": 0, "logprobs": 1})
    view = View.of(call, 0, NAMES)
    assert view is not None
    prompt = (None, *told(ids("i")).logprobs) if echo else ()
    detail = Detail(logprobs=told([EOS]).logprobs, prompt_logprobs=prompt)
    # The engine's one token may have been the model's end.
    seen = view.see("", FinishReason.STOP, detail)
    assert seen == (call.jobs[0].echo or "", FinishReason.LENGTH)
    found = view.logprobs()
    assert (found and found["tokens"]) == (["h", "i"] if echo else None)

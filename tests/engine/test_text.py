import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.text import Detokenizer, TextDelta, TokenBytes, UnsupportedTokenizer

SENTENCES = [
    "The capital of France is Paris, and the tide comes in twice a day.",
    "Nobody waits for ever: 你好, grüß dich, naïve café 😀 👍🏽 — déjà vu.",
    "def main() -> None:\n    print('hello world')\n",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|start|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    # Not special, and with characters that the byte alphabet lacks or means otherwise.
    tokenizer.add_tokens([AddedToken("<tool call> é 你"), AddedToken("[TOOL]")])
    return tokenizer


PIECES = ["▁", "▁▁", "▁the", "▁tide", "the", "s", "a", "b", "ab", "ba", "aab", "你", "é", "\n", "."]


def sentencepiece(decoder: Any) -> Tokenizer:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES]
    vocab = {name: id for id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def llama() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentencepiece(decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]))


def gemma() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentencepiece(decoders.Sequence(steps))


def metaspace() -> Tokenizer:
    steps = [decoders.ByteFallback(), decoders.Metaspace()]
    return sentencepiece(decoders.Sequence(steps))


BYTE_LEVEL = byte_level()
FALLBACK = {"llama": llama(), "gemma": gemma(), "metaspace": metaspace()}
BYTES = {name: TokenBytes(tokenizer) for name, tokenizer in FALLBACK.items()}
BYTE_LEVEL_BYTES = TokenBytes(BYTE_LEVEL)
FIRST_BYTE, FIRST_PIECE = 3, 3 + 256


def ids_of(text: str) -> list[int]:
    """One token a piece or byte, for the tokenizers with byte tokens."""
    tokenizer = FALLBACK["llama"]
    out: list[int] = []
    for char in text.replace(" ", "▁"):
        id = tokenizer.token_to_id(char)
        out += [FIRST_BYTE + byte for byte in char.encode()] if id is None else [id]
    return out


def id_of(tokenizer: Tokenizer, name: str) -> int:
    id = tokenizer.token_to_id(name)
    assert id is not None
    return int(id)


def joined(tokens: TokenBytes, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    detokenizer = Detokenizer(tokens, stop)
    return "".join(detokenizer.push(id).text for id in ids) + detokenizer.flush()


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


# Ids past the end exist in models whose embedding is padded.
any_ids = st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 5), max_size=40)
raw_bytes = st.lists(
    st.sampled_from([id for name, id in BYTE_LEVEL.get_vocab().items() if len(name) == 1]),
    max_size=12,
)
# Whole characters as byte tokens, among pieces and special tokens.
whole_chars = st.lists(
    st.one_of(
        st.integers(0, 2).map(lambda id: [id]),
        st.integers(FIRST_PIECE, FIRST_PIECE + len(PIECES) + 3).map(lambda id: [id]),
        st.characters(codec="utf-8").map(lambda c: [FIRST_BYTE + byte for byte in c.encode()]),
    ),
    max_size=25,
).map(lambda parts: [id for part in parts for id in part])


@settings(max_examples=300, deadline=None)
@given(st.one_of(any_ids, raw_bytes))
def test_joined_deltas_equal_the_whole_decode_for_any_tokens(ids: list[int]) -> None:
    assert joined(BYTE_LEVEL_BYTES, ids) == decoded(BYTE_LEVEL, ids)


@pytest.mark.parametrize("name", FALLBACK)
@settings(max_examples=150, deadline=None)
@given(ids=whole_chars)
def test_joined_deltas_equal_the_whole_decode_with_byte_tokens(name: str, ids: list[int]) -> None:
    assert joined(BYTES[name], ids) == decoded(FALLBACK[name], ids)


def test_joined_deltas_equal_the_whole_decode_of_word_pieces() -> None:
    vocab = {"[UNK]": 0, "tide": 1, "##gate": 2, "##s": 3, ",": 4, "open": 5}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    ids = [1, 2, 3, 4, 5, 1, 4, 4]
    assert joined(TokenBytes(tokenizer), ids) == decoded(tokenizer, ids) == "tidegates, open tide,,"


def test_joined_deltas_equal_the_whole_decode_without_a_decoder() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    assert joined(TokenBytes(tokenizer), [0, 1, 0]) == decoded(tokenizer, [0, 1, 0]) == "a b a"


@pytest.mark.parametrize("text", SENTENCES)
def test_real_text_comes_back_without_replacement_characters(text: str) -> None:
    detokenizer = Detokenizer(BYTE_LEVEL_BYTES)
    deltas = [detokenizer.push(id).text for id in BYTE_LEVEL.encode(text).ids]
    assert "".join(deltas) == text
    assert detokenizer.flush() == ""
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_is_sent_when_its_last_byte_is_there() -> None:
    for tokens, ids in [
        (BYTE_LEVEL_BYTES, [id_of(BYTE_LEVEL, c) for c in "ðŁĺĢ"]),
        (BYTES["llama"], [FIRST_BYTE + byte for byte in "😀".encode()]),
    ]:
        detokenizer = Detokenizer(tokens)
        assert [detokenizer.push(id).text for id in ids] == ["", "", "", "😀"]


def test_a_truncated_character_is_flushed_once() -> None:
    for tokens, ids in [
        (BYTE_LEVEL_BYTES, [id_of(BYTE_LEVEL, c) for c in "aðŁĺ"]),
        (BYTES["llama"], ids_of("a") + [FIRST_BYTE + byte for byte in "😀".encode()[:3]]),
    ]:
        detokenizer = Detokenizer(tokens)
        assert "".join(detokenizer.push(id).text for id in ids) == "a"
        assert detokenizer.flush() == "\ufffd"
        assert detokenizer.flush() == ""


def test_bytes_that_make_no_character_leave_the_good_ones_beside_them() -> None:
    # The whole decode turns the run into U+FFFD, and with it what was sent before.
    ids = [*(FIRST_BYTE + byte for byte in "你".encode()), FIRST_BYTE + 0x80, *ids_of("a")]
    assert decoded(FALLBACK["llama"], ids) == "\ufffd" * 4 + "a"
    detokenizer = Detokenizer(BYTES["llama"])
    assert [detokenizer.push(id).text for id in ids] == ["", "", "你", "\ufffd", "a"]


def test_only_the_first_visible_token_loses_its_leading_space() -> None:
    ids = [1, 2, *(id_of(FALLBACK["llama"], piece) for piece in ["▁the", "▁tide", "▁", "s"])]
    assert joined(BYTES["llama"], ids) == "the tide s"
    assert joined(BYTES["gemma"], ids) == " the tide s"
    # A space may also come as a byte.
    assert joined(BYTES["llama"], [FIRST_BYTE + 0x20] * 2 + ids_of("a")) == " a"
    # Also in a second life, whose own first token is not the answer's first.
    assert Detokenizer(BYTES["llama"], generated=ids[:3]).push(ids[3]).text == " tide"


def test_special_tokens_are_skipped_and_added_ones_are_not() -> None:
    vocab = BYTE_LEVEL.get_vocab()
    ids = [vocab["<|start|>"], vocab["[TOOL]"], vocab["<tool call> é 你"], vocab["<|end|>"]]
    assert joined(BYTE_LEVEL_BYTES, ids) == "[TOOL]<tool call> é 你"


def test_a_token_is_looked_up_once_however_long_the_answer() -> None:
    class Counting:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self.tokenizer = tokenizer
            self.calls = 0

        def __getattr__(self, name: str) -> Any:
            self.calls += 1
            return getattr(self.tokenizer, name)

    for tokenizer, ids in [
        (BYTE_LEVEL, BYTE_LEVEL.encode(SENTENCES[1]).ids),
        (FALLBACK["llama"], [FIRST_BYTE + 0x80, FIRST_BYTE + 0x81, FIRST_PIECE + 2]),
    ]:
        counting = Counting(tokenizer)
        tokens = TokenBytes(counting)
        joined(tokens, ids * 2)
        counting.calls = 0
        joined(tokens, ids * 50)
        assert counting.calls == 0


def test_transformers_tokenizers_are_unwrapped() -> None:
    class Wrapper:
        backend_tokenizer = BYTE_LEVEL

    ids = BYTE_LEVEL.encode("Paris").ids
    assert joined(TokenBytes(Wrapper()), ids) == "Paris"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "b")]),
    ],
)
def test_a_decoder_that_looks_beyond_single_tokens_is_refused(decoder: Any) -> None:
    with pytest.raises(UnsupportedTokenizer) as caught:
        TokenBytes(sentencepiece(decoder))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.decoders == caught.value.decoders != ()
    assert again.decoders[0] in str(again)


# Stop strings


def stopped_text(text: str, stops: Sequence[str], early: int = 0) -> str | None:
    """The text before the stop that is complete first, the longest of those; or None.

    Those complete within the first ``early`` characters do not count.
    """
    for end in range(early + 1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return None


def visible(text: str, stops: Sequence[str]) -> str:
    """What may be seen of an unfinished ``text`` without a stop: all that begins none."""
    longest = 0
    for stop in stops:
        for length in range(1, len(stop)):
            if text.endswith(stop[:length]):
                longest = max(longest, length)
    return text[: len(text) - longest]


stop_lists = st.lists(st.text("ab 你\ufffd", min_size=1, max_size=5), max_size=3)
small_ids = st.lists(
    st.one_of(
        st.sampled_from([id_of(FALLBACK["llama"], p) for p in ["▁", "a", "b", "ab", "ba", "aab"]]),
        st.sampled_from([FIRST_BYTE + byte for byte in "你".encode()]),
        st.just(2),
    ),
    max_size=20,
)


@settings(max_examples=500, deadline=None)
@given(ids=small_ids, stops=stop_lists, least=st.integers(0, 6))
def test_each_push_sends_exactly_what_is_certain(
    ids: list[int], stops: list[str], least: int
) -> None:
    """With a minimum of tokens: what they complete is no stop, what they begin may be one."""
    tokens = BYTES["gemma"]
    plain, detokenizer = Detokenizer(tokens), Detokenizer(tokens, stops, min_tokens=least)
    text = seen = ""
    early = 0
    for number, id in enumerate(ids, start=1):
        text += plain.push(id).text
        early = len(text) if number <= least else early
        delta = detokenizer.push(id)
        seen += delta.text
        before = stopped_text(text, stops, early)
        assert delta.stopped is detokenizer.stopped is (before is not None)
        assert seen == (visible(text, stops) if before is None else before)
        assert detokenizer.emitted_chars == len(seen)
    text += plain.flush()
    early = len(text) if len(ids) <= least else early
    seen += detokenizer.flush()
    before = stopped_text(text, stops, early)
    assert seen == (text if before is None else before)
    assert detokenizer.emitted_chars == len(seen)


@settings(max_examples=200, deadline=None)
@given(ids=small_ids, stops=stop_lists)
def test_where_an_answer_stops_does_not_depend_on_the_cuts_between_tokens(
    ids: list[int], stops: list[str]
) -> None:
    tokens = BYTES["gemma"]
    text = joined(tokens, ids)
    if "\ufffd" not in text:
        assert joined(tokens, ids, stops) == joined(tokens, ids_of(text), stops)


def test_a_stop_string_across_tokens_is_never_seen() -> None:
    # The case of vLLM's issue 3574.
    text = "ABC DEFGHIJ K"
    ids = BYTE_LEVEL.encode(text).ids
    detokenizer = Detokenizer(BYTE_LEVEL_BYTES, ["DEFGHIJ"])
    seen = []
    for id in ids:
        delta = detokenizer.push(id)
        seen.append(delta.text)
        if delta.stopped:
            break
    assert "".join(seen) == "ABC "
    assert detokenizer.stopped
    assert detokenizer.flush() == ""
    assert "".join(seen) == joined(BYTE_LEVEL_BYTES, ids, ["DEFGHIJ"])


def test_what_only_began_a_stop_string_is_sent_as_soon_as_it_cannot_be_one() -> None:
    detokenizer = Detokenizer(BYTES["gemma"], ["aab"])
    pushed = [detokenizer.push(id).text for id in ids_of("aaas")]
    assert pushed == ["", "", "a", "aas"]
    assert detokenizer.flush() == ""


def test_what_only_began_a_stop_string_is_flushed_at_the_end() -> None:
    detokenizer = Detokenizer(BYTES["gemma"], ["abab"])
    assert [detokenizer.push(id).text for id in ids_of("saba")] == ["s", "", "", ""]
    assert detokenizer.flush() == "aba"
    assert detokenizer.flush() == ""


@pytest.mark.parametrize(
    ("stops", "text", "left"),
    [
        (["b", "s"], "aasab", "aa"),  # the first to be complete, not the first in the list
        (["ab", "aab"], "saab", "s"),  # complete at once: the one that starts first
        (["aab", "ab"], "saab", "s"),
        (["aaab", "a"], "aaab", ""),  # one that is complete is not put off by a longer one
        (["abab"], "aabab", "a"),  # falls back to a shorter beginning of itself
        (["aabaaas"], "aabaaabaaas", "aaba"),  # and the shorter one, too, falls back
        (["你"], "a你b", "a"),
    ],
)
def test_which_stop_string_ends_the_answer(stops: list[str], text: str, left: str) -> None:
    assert joined(BYTES["gemma"], ids_of(text), stops) == left


def test_nothing_follows_a_stop_string() -> None:
    detokenizer = Detokenizer(BYTES["gemma"], ["b"])
    for id in ids_of("ab"):
        detokenizer.push(id)
    assert detokenizer.push(ids_of("a")[0]) == TextDelta("", True)
    assert detokenizer.flush() == ""
    assert detokenizer.emitted_chars == 1


def test_half_a_character_behind_a_stop_string_is_not_flushed() -> None:
    tokenizer = Tokenizer(models.BPE({"aä": 0, "b": 1}, []))  # ä: the byte E4
    tokenizer.decoder = decoders.ByteLevel()
    detokenizer = Detokenizer(TokenBytes(tokenizer), ["a"])
    assert detokenizer.push(0) == TextDelta("", True)
    assert detokenizer.flush() == ""


def test_a_stop_string_that_half_a_character_completes_is_not_flushed() -> None:
    """The last character is known only at the end, and with it that this was a stop string."""
    detokenizer = Detokenizer(BYTES["gemma"], ["a\ufffd"])
    for id in (id_of(FALLBACK["gemma"], "a"), FIRST_BYTE + "你".encode()[0]):
        assert detokenizer.push(id).text == ""
    assert detokenizer.flush() == ""
    assert detokenizer.stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Detokenizer(BYTE_LEVEL_BYTES, ["a", ""])


# A second life


@settings(max_examples=200, deadline=None)
@given(ids=small_ids, stops=stop_lists, least=st.integers(0, 6))
def test_a_second_life_goes_on_with_the_next_character(
    ids: list[int], stops: list[str], least: int
) -> None:
    for name in ("llama", "gemma"):
        only = Detokenizer(BYTES[name], stops, min_tokens=least)
        whole = "".join(only.push(id).text for id in ids) + only.flush()
        for cut in range(len(ids) + 1):
            first = Detokenizer(BYTES[name], stops, min_tokens=least)
            seen = "".join(first.push(id).text for id in ids[:cut])
            second = Detokenizer(BYTES[name], stops, generated=ids[:cut], min_tokens=least)
            assert second.stopped is first.stopped
            assert second.emitted_chars == len(seen)
            rest = "".join(second.push(id).text for id in ids[cut:]) + second.flush()
            assert seen + rest == whole


@settings(max_examples=100, deadline=None)
@given(ids=st.one_of(any_ids, raw_bytes))
def test_a_second_life_sends_the_other_half_of_a_character(ids: list[int]) -> None:
    whole = decoded(BYTE_LEVEL, ids)
    for cut in range(len(ids) + 1):
        first = Detokenizer(BYTE_LEVEL_BYTES)
        seen = "".join(first.push(id).text for id in ids[:cut])
        second = Detokenizer(BYTE_LEVEL_BYTES, generated=ids[:cut])
        rest = "".join(second.push(id).text for id in ids[cut:]) + second.flush()
        assert seen + rest == whole

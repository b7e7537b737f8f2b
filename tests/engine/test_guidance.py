"""Grammars: masks over the vocabulary, ends, replay and limits."""

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tokenizers import AddedToken

from engine.guidance import MAX_GRAMMAR, GuidanceError, Guides, Matcher, check_grammar
from engine.llm import LLM
from engine.loader import load_tokenizer
from engine.model_info import model_info
from engine.request import FinishReason, InvalidParam, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "é", "日本"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def of_schema(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def of_regex(regex: str) -> str:
    return LLMatcher.grammar_from_regex(regex)


def of_lark(lark: str) -> str:
    return LLMatcher.grammar_from_lark(lark)


def allowed(matcher: Matcher, vocab: int) -> set[int]:
    mask = matcher.mask()
    assert mask.dtype == np.int32
    assert mask.shape == (-(-vocab // 32),)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[vocab:].any()
    return {int(token) for token in np.nonzero(bits)[0]}


class Model:
    """A tokenizer with its guides, and the vocabulary of the model that goes with them."""

    def __init__(
        self, folder: Path, extra: int = 0, eos: tuple[int, ...] | None = None, **more: Any
    ) -> None:
        self.tokenizer = load_tokenizer(folder)
        info = model_info(folder)
        self.vocab = info.vocab_size + extra
        self.eos = info.eos_token_ids if eos is None else eos
        self.guides = Guides(self.tokenizer, self.vocab, self.eos, **more)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def walk(self, grammar: str, rng: random.Random, most: int = 200) -> list[int]:
        """Tokens drawn at random from the masks, up to the end of the grammar."""
        matcher = self.guides.matcher(grammar)
        tokens: list[int] = []
        while not matcher.finished and len(tokens) < most:
            choice = rng.choice(sorted(allowed(matcher, self.vocab)))
            matcher.push(choice)
            if choice in self.eos:
                break
            tokens.append(choice)
        return tokens

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Path) -> Model:
    return Model(tiny_model_dir)


@pytest.fixture(scope="module")
def demo(demo_model_dir: Path) -> Model:
    return Model(demo_model_dir)


@pytest.fixture(params=["tiny", "demo"])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.getfixturevalue(request.param)
    return found


def test_whatever_is_drawn_matches_the_schema(model: Model) -> None:
    for seed in range(20):
        tokens = model.walk(of_schema(SCHEMA), random.Random(seed), 2_000)
        jsonschema.validate(json.loads(model.text(tokens)), SCHEMA)


@pytest.mark.parametrize("regex", ["[0-9]{3}-[a-f]+", "(red|green|blue)", "é+x", "[0-9]{2}:.{2}"])
def test_whatever_is_drawn_matches_the_regex(model: Model, regex: str) -> None:
    matched = 0
    for seed in range(20):
        tokens = model.walk(of_regex(regex), random.Random(seed))
        if len(tokens) < 200:
            assert re.fullmatch(regex, model.text(tokens))
            matched += 1
    assert matched > 10


@pytest.mark.parametrize(
    "value", [{"name": "x", "age": 1}, {"name": "日本", "age": 150, "tags": ["é"]}]
)
def test_a_text_that_matches_is_allowed_token_by_token(model: Model, value: object) -> None:
    matcher = model.guides.matcher(of_schema(SCHEMA))
    for token in model.ids(json.dumps(value, ensure_ascii=False)):
        assert not matcher.finished
        assert token in allowed(matcher, model.vocab)
        matcher.push(token)
    assert matcher.finished


def test_the_end_is_allowed_only_where_the_grammar_may_end(model: Model) -> None:
    matcher = model.guides.matcher(of_regex("[0-9]{2,}"))
    for digit, may_end in (("1", False), ("2", False), ("3", True), ("4", True)):
        assert allowed(matcher, model.vocab).isdisjoint(model.eos) is not may_end
        matcher.push(model.ids(digit)[0])
    assert not matcher.finished
    matcher.push(model.eos[0])
    assert matcher.finished


def test_each_end_token_of_the_model_may_end_it(demo_model_dir: Path) -> None:
    model = Model(demo_model_dir, eos=(2, 0))
    for eos in (2, 0):
        matcher = model.guides.matcher(of_regex("a+"))
        assert allowed(matcher, model.vocab).isdisjoint({0, 2})
        matcher.push(model.ids("a")[0])
        assert allowed(matcher, model.vocab) >= {0, 2}
        matcher.push(eos)
        assert matcher.finished


def test_special_tokens_are_no_text(model: Model) -> None:
    matcher = model.guides.matcher(of_regex("(?s:.)*"))
    special = {id for id, token in model.tokenizer.added_tokens_decoder.items() if token.special}
    assert allowed(matcher, model.vocab) & special <= set(model.eos)


@pytest.mark.parametrize("extra", [1, 31, 64, 1_000])
def test_logits_beyond_the_tokenizer_are_never_allowed(tiny_model_dir: Path, extra: int) -> None:
    model = Model(tiny_model_dir, extra)
    matcher = model.guides.matcher(of_regex("(?s:.)*"))
    assert max(allowed(matcher, model.vocab)) < len(model.tokenizer)


def test_tokens_beyond_the_logits_are_never_allowed(tiny_model_dir: Path) -> None:
    model = Model(tiny_model_dir, extra=-100, eos=(0,))
    matcher = model.guides.matcher(of_regex("(?s:.)*"))
    assert max(allowed(matcher, model.vocab)) < model.vocab


def test_an_added_token_is_the_text_that_it_adds(demo_model_dir: Path) -> None:
    """llguidance's own reading of tokenizer.json takes these for special."""
    tokenizer = load_tokenizer(demo_model_dir)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    (id,) = tokenizer.encode("<tool_call>", add_special_tokens=False)
    guides = Guides(tokenizer, len(tokenizer), (2,))
    for regex in ("<tool_call>x", "(<tool_call>|y)x"):
        matcher = guides.matcher(of_regex(regex))
        assert id in allowed(matcher, len(tokenizer))
        matcher.push(id)
        matcher.push(tokenizer.encode("x", add_special_tokens=False)[0])
        assert matcher.finished


def test_the_name_of_a_special_token_is_text(demo: Model) -> None:
    grammar = of_regex(r"a<\|im_end\|>b")
    matcher = demo.guides.matcher(grammar)
    tokens: list[int] = []
    while not matcher.finished:
        choice = max(allowed(matcher, demo.vocab))
        assert choice not in demo.eos
        matcher.push(choice)
        tokens.append(choice)
    assert demo.text(tokens) == "a<|im_end|>b"


@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_replayed_matcher_goes_on_as_the_first_would_have(
    demo: Model, seed: int, cut: float
) -> None:
    tokens = demo.walk(of_schema(SCHEMA), random.Random(seed))
    at = int(cut * len(tokens))
    first = demo.guides.matcher(of_schema(SCHEMA))
    for token in tokens[:at]:
        first.mask()
        first.push(token)
    second = demo.guides.matcher(of_schema(SCHEMA), tokens[:at])
    for token in tokens[at:]:
        assert allowed(first, demo.vocab) == allowed(second, demo.vocab)
        first.push(token)
        second.push(token)
    assert first.finished is second.finished


def test_a_replay_without_the_tokens_would_start_again(demo: Model) -> None:
    tokens = demo.ids('{"name": "x",')
    resumed = demo.guides.matcher(of_schema(SCHEMA), tokens)
    fresh = demo.guides.matcher(of_schema(SCHEMA))
    assert allowed(resumed, demo.vocab) != allowed(fresh, demo.vocab)


def test_tokens_that_do_not_match_cannot_be_gone_on_from(demo: Model) -> None:
    with pytest.raises(InvalidParam) as caught:
        demo.guides.matcher(of_schema(SCHEMA), demo.ids("[1]"))
    assert caught.value.name == "generated"


def test_a_token_outside_the_mask_is_refused(demo: Model) -> None:
    matcher = demo.guides.matcher(of_regex("[0-9]+"))
    with pytest.raises(GuidanceError, match="allows no going on"):
        matcher.push(demo.ids("x")[0])


def test_a_grammar_is_compiled_once_for_all_choices_of_a_request(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    class Counted:
        def __new__(cls, tokens: Any, grammar: str, **more: Any) -> Any:
            compiled.append(grammar)
            return LLMatcher(tokens, grammar, **more)

    monkeypatch.setattr("engine.guidance.LLMatcher", Counted)
    model = Model(tiny_model_dir, kept=2)
    one, two, three = (of_regex(regex) for regex in ("a+", "b+", "c+"))
    for grammar in (one, one, two, one, three, one):
        model.guides.matcher(grammar)
    assert compiled == [one, two, three]
    model.guides.matcher(two)
    assert compiled == [one, two, three, two], "it was the one not used for longest"
    for _ in range(2):
        with pytest.raises(InvalidParam):
            model.guides.matcher("{")
    assert compiled[4:] == ["{", "{"]


def test_a_kept_grammar_begins_at_its_beginning_whatever_was_done_with_it(demo: Model) -> None:
    grammar = of_schema(SCHEMA)
    tokens = demo.walk(grammar, random.Random(1))
    fresh = Guides(demo.tokenizer, demo.vocab, demo.eos).matcher(grammar)
    kept = demo.guides.matcher(grammar)
    for token in tokens:
        assert allowed(kept, demo.vocab) == allowed(fresh, demo.vocab)
        kept.push(token)
        fresh.push(token)
    assert kept.finished is fresh.finished


def test_matchers_do_not_share_their_state(demo: Model) -> None:
    one, other = (demo.guides.matcher(of_regex("[0-9]{2}")) for _ in range(2))
    before = allowed(other, demo.vocab)
    one.push(demo.ids("1")[0])
    assert allowed(other, demo.vocab) == before


def test_a_grammar_may_be_empty(demo: Model) -> None:
    matcher = demo.guides.matcher(of_regex(""))
    assert allowed(matcher, demo.vocab) == set(demo.eos)


BAD = [
    of_schema({"not": {"type": "string"}}),
    of_schema({"$ref": "http://127.0.0.1/x"}),
    of_schema({"$ref": "#/$defs/none"}),
    of_schema({"enum": []}),
    of_regex("[0-9"),
    of_regex("a(?=b)"),
    of_lark("start: nothing"),
    "start: (",
    "{",
    "",
    of_regex("a" * MAX_GRAMMAR),
]


@pytest.mark.parametrize("grammar", BAD, ids=range(len(BAD)))
def test_a_bad_grammar_is_refused_alike_with_and_without_a_model(demo: Model, grammar: str) -> None:
    for refuse in (check_grammar, demo.guides.matcher):
        with pytest.raises(InvalidParam) as caught:
            refuse(grammar)
        assert caught.value.name == "grammar"
        assert "<state>" not in str(caught.value)
        assert len(str(caught.value)) < 1_000


def test_a_grammar_without_any_text_is_refused_before_it_runs(demo: Model) -> None:
    with pytest.raises(InvalidParam, match="no text matches it") as caught:
        demo.guides.matcher(of_schema({"$ref": "#"}))
    assert caught.value.name == "grammar"


def test_a_good_grammar_passes_the_check() -> None:
    for grammar in (of_schema(SCHEMA), of_regex("[a-z]+"), of_lark('start: "a" start | "b"')):
        check_grammar(grammar)


def test_a_rule_that_is_not_used_is_no_error() -> None:
    check_grammar(of_lark('start: "a"\nother: "b"'))


def test_what_is_too_much_for_a_mask_ends_only_that_request(demo: Model) -> None:
    matcher = demo.guides.matcher(of_regex("((a{1,200}){1,200}){1,200}"))
    letter = demo.ids("a")[0]

    def go_on() -> None:
        for _ in range(1_000):
            matcher.mask()
            matcher.push(letter)

    with pytest.raises(GuidanceError):
        go_on()
    demo.guides.matcher(of_regex("a+")).mask()


class Seconds:
    """A clock in which each look at it takes as long as a test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += self.step
        return self.now


@pytest.mark.parametrize("lark", ['s: s s | "a"', 's: s s s | s s | "a"'])
def test_an_ambiguous_grammar_ends_while_its_masks_are_cheap(demo: Model, lark: str) -> None:
    """With room for 50,000 items, a mask of these 30 bytes took a third of a second."""
    guides = Guides(demo.tokenizer, demo.vocab, demo.eos, clock=Seconds())
    matcher, (letter,) = guides.matcher(of_lark(f"start: s\n{lark}")), demo.ids("a")

    def go_on() -> None:
        for _ in range(600):
            matcher.mask()
            matcher.push(letter)

    with pytest.raises(GuidanceError, match=r"Too many items \(limit 3000"):
        go_on()


_KINDS = [{"type": kind} for kind in ("integer", "string", "boolean", "null", "array")]
_INNER = {"type": "object", "properties": {f"q{i}": {"type": "integer"} for i in range(10)}}


@pytest.mark.parametrize(
    ("kinds", "count", "value"),
    [(_KINDS, 30, "x"), (_KINDS, 100, [1]), ([_INNER] * 5, 60, {"q9": 1}), (_KINDS[:1], 200, 1)],
)
def test_schemas_with_many_choices_are_not_too_complex(
    demo: Model, kinds: list[object], count: int, value: object
) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"anyOf": kinds} for i in range(count)}}
    matcher = demo.guides.matcher(of_schema(schema))
    for token in demo.ids(json.dumps({f"p{i}": value for i in range(count)})):
        matcher.mask()
        matcher.push(token)
    assert matcher.finished


@pytest.mark.parametrize("late", ["mask", "push"])
def test_a_grammar_that_takes_too_long_fails_once_and_for_all(
    tiny_model_dir: Path, late: str
) -> None:
    clock = Seconds()
    model = Model(tiny_model_dir, clock=clock)
    matcher, letter = model.guides.matcher(of_regex("a+")), model.ids("a")[0]
    matcher.mask()
    clock.step = 0.3
    with pytest.raises(GuidanceError, match="more than 5 ms a token, 250 ms beyond"):
        matcher.mask() if late == "mask" else matcher.push(letter)
    looks, clock.step = clock.looks, 0.0
    for again in (matcher.mask, lambda: matcher.push(letter)):
        with pytest.raises(GuidanceError, match="5 ms a token"):
            again()
    assert clock.looks == looks, "it was worked on again"


def test_a_grammar_may_take_some_time_for_each_token_on_average(tiny_model_dir: Path) -> None:
    clock = Seconds()
    model = Model(tiny_model_dir, clock=clock)
    steady, slow = (model.guides.matcher(of_regex("a+")) for _ in range(2))
    letter = model.ids("a")[0]

    def go_on(matcher: Matcher, each_s: float) -> int:
        clock.step = each_s / 2
        for done in range(300):
            try:
                matcher.mask()
                matcher.push(letter)
            except GuidanceError:
                return done
        return 300

    assert go_on(steady, 0.004) == 300
    assert 40 < go_on(slow, 0.010) < 60


def test_a_panic_inside_is_an_error_and_not_the_end_of_the_engine(
    demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):  # as pyo3 calls it, and as little of an Exception
        pass

    class Panics:
        def __init__(self, *_: object, **__: object) -> None:
            raise PanicException

    monkeypatch.setattr("engine.guidance.LLMatcher", Panics)
    with pytest.raises(InvalidParam, match="too complex"):
        demo.guides.matcher(of_regex("a"))


def test_answers_match_and_are_the_same_when_they_make_way_for_each_other(
    tiny_model_dir: Path,
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 12}},
        "required": ["n", "s"],
        "additionalProperties": False,
    }
    params = [
        SamplingParams(max_tokens=80, seed=seed, grammar=of_schema(schema)) for seed in range(6)
    ]
    prompts: list[str | list[int]] = [[65 + i, 66, 67] for i in range(6)]
    roomy = LLM(str(tiny_model_dir), num_blocks=200, block_tokens=4, threads=1)
    alone = [
        roomy.generate(p, one, progress=False)[0] for p, one in zip(prompts, params, strict=True)
    ]
    tight = LLM(str(tiny_model_dir), num_blocks=24, block_tokens=4, threads=1)
    together = tight.generate(prompts, params, progress=False)
    assert tight.stats().preemptions > 0
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    ended = [one for one in together if one.finish_reason is FinishReason.STOP]
    assert ended
    for one in ended:
        jsonschema.validate(json.loads(one.text), schema)


def test_a_model_without_an_end_refuses_grammars(tiny_model_dir: Path) -> None:
    guides = Model(tiny_model_dir, eos=()).guides
    with pytest.raises(InvalidParam, match="no end-of-sequence token"):
        guides.matcher(of_regex("a"))

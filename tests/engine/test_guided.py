"""Answers that must match a grammar, through the whole engine."""

import threading
from typing import Any

import pytest

from engine.guides import LazyGuides
from engine.request import FinishReason, InvalidParam, PromptTooLong, QueueFull, SamplingParams
from engine.submission import DuplicateKey, EngineFailed, Submission
from tests.engine.rig import EOS, Bench
from tests.engine.scripted_guides import ScriptedGuides
from tests.engine.tiny import VOCAB

pytestmark = pytest.mark.usefixtures("each_loop")

GRAMMAR = "30|31 40|41|42 50 60|61|62|63 70|71 80"


def bench_with_guides(**more: Any) -> tuple[Bench, ScriptedGuides]:
    guides = ScriptedGuides(VOCAB, EOS)
    return Bench(guides=guides, **more), guides


def allowed(tokens: list[int], grammar: str) -> bool:
    places = [{int(token) for token in word.split("|")} for word in grammar.split() if word != "$"]
    return all(token in place for token, place in zip(tokens, places, strict=False))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_ends_with_its_grammar_beside_others_that_have_none(temperature: float) -> None:
    bench, _ = bench_with_guides()
    bench.submit("free", max_tokens=9, temperature=temperature, seed=3)
    bench.submit("bound", max_tokens=9, temperature=temperature, grammar=GRAMMAR, logprobs=1)
    bench.run()
    tokens = bench.inbox.tokens("bound")
    assert len(tokens) == 6
    assert allowed(tokens, GRAMMAR)
    last = bench.inbox.of("bound")[-1]
    assert last.finish is FinishReason.STOP
    assert bench.inbox.text("bound").split() == [f"w{token}" for token in tokens]
    assert len(bench.inbox.logprobs("bound")) == 6
    alone = Bench()
    alone.submit("free", max_tokens=9, temperature=temperature, seed=3)
    alone.run()
    assert bench.inbox.tokens("free") == alone.inbox.tokens("free")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_token_ends_it_where_the_grammar_may_end(ignore_eos: bool) -> None:
    bench, _ = bench_with_guides()
    bench.submit("a", max_tokens=9, grammar="30 31 $", ignore_eos=ignore_eos, min_tokens=9)
    bench.run()
    assert bench.inbox.tokens("a") == [30, 31, EOS]
    assert bench.inbox.of("a")[-1].finish is FinishReason.STOP
    assert bench.inbox.text("a").split() == ["w30", "w31"]


def test_what_may_be_a_stop_string_is_sent_when_the_grammar_is_over() -> None:
    bench, _ = bench_with_guides()
    bench.submit("a", grammar="30 31", stop=("w31 and more",))
    bench.run()
    assert bench.inbox.text("a").split() == ["w30", "w31"]


def test_max_tokens_ends_it_sooner() -> None:
    bench, _ = bench_with_guides()
    bench.submit("a", grammar=GRAMMAR, max_tokens=2)
    bench.run()
    assert bench.inbox.of("a")[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize("steps", [1, 3])
def test_one_that_makes_way_goes_on_in_its_grammar(steps: int) -> None:
    """A grammar begun anew after a preemption gives the beginning of the answer twice."""
    bench, _ = bench_with_guides(max_seqs=1, admission_preemption=2, debug=True)
    bench.submit("a", grammar=GRAMMAR, temperature=1.0, seed=5)
    for _ in range(steps):
        bench.engine.step()
    bench.submit("urgent", priority=2)
    bench.run()
    alone, _ = bench_with_guides()
    alone.submit("a", grammar=GRAMMAR, temperature=1.0, seed=5)
    alone.run()
    assert bench.engine.stats().admission_preemptions == 1
    assert bench.inbox.tokens("a") == alone.inbox.tokens("a")
    assert bench.inbox.text("a") == alone.inbox.text("a")


@pytest.mark.parametrize("made", [1, 3, 5])
def test_one_that_goes_on_elsewhere_goes_on_in_its_grammar(made: int) -> None:
    bench, guides = bench_with_guides()
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=5, grammar=GRAMMAR)
    bench.engine.submit(Submission("whole", (5, 6, 7), params))
    bench.run()
    tokens = bench.inbox.tokens("whole")
    bench.engine.submit(Submission("rest", (5, 6, 7), params, generated=tuple(tokens[:made])))
    bench.run()
    assert bench.inbox.tokens("rest") == tokens[made:]
    assert [matcher.pushed for matcher in guides.made] == [tokens, tokens]


@pytest.mark.parametrize("fails", ["mask", "push"])
def test_a_grammar_that_fails_fails_its_own_request(fails: str) -> None:
    bench, guides = bench_with_guides()
    bench.submit("good", grammar=GRAMMAR)
    bench.submit("bad", grammar=GRAMMAR)
    bench.submit("free")
    bench.engine.step()
    guides.made[1].fails = fails
    bench.run()
    assert str(bench.inbox.of("bad")[-1].error).startswith("RuntimeError: no ")
    assert len(bench.inbox.tokens("good")) == 6
    assert len(bench.inbox.tokens("free")) == 6
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_what_is_no_grammar_is_refused_and_leaves_nothing() -> None:
    bench, _ = bench_with_guides()
    with pytest.raises(InvalidParam, match="grammar must be a script, not 'no number'"):
        bench.submit("a", grammar="no number")
    assert bench.engine.keys() == ()
    with pytest.raises(InvalidParam, match="grammar must be None in an engine without guides"):
        Bench().submit("a", grammar=GRAMMAR)


GUIDED = SamplingParams(max_tokens=9, temperature=0.0, grammar=GRAMMAR)


@pytest.mark.parametrize("why", ["full", "duplicate", "stopped", "too long", "vocabulary"])
def test_what_has_no_room_is_not_compiled(why: str) -> None:
    """A full replica compiled a grammar for each request that it turned away."""
    bench, guides = bench_with_guides(max_waiting=1)
    refused: type[Exception] = InvalidParam
    key, prompt = "a", (5, 6, 7)
    if why == "full":
        bench.submit("waits")
        refused = QueueFull
    elif why == "duplicate":
        bench.submit("a")
        bench.engine.step()
        refused = DuplicateKey
    elif why == "stopped":
        bench.engine.stop()
        refused = EngineFailed
    elif why == "too long":
        prompt, refused = (5,) * 120, PromptTooLong
    else:
        prompt = (VOCAB,)
    submission = Submission(key, prompt, GUIDED)
    for ask in (bench.engine.compile, bench.engine.submit):
        with pytest.raises(refused):
            ask(submission)
    assert guides.made == []


def test_what_was_compiled_elsewhere_is_not_compiled_again() -> None:
    bench, guides = bench_with_guides()
    submission = Submission("a", (5, 6, 7), GUIDED, generated=(30,))
    matcher = bench.engine.compile(submission)
    assert bench.engine.keys() == ()
    bench.engine.submit(submission, matcher)
    bench.run()
    assert guides.made == [matcher]
    assert allowed([30, *bench.inbox.tokens("a")], GRAMMAR)
    assert len(guides.made[0].pushed) == 6
    assert bench.engine.compile(Submission("b", (5,), SamplingParams())) is None


def test_lazy_guides_are_made_once_though_many_ask_at_once() -> None:
    made: list[ScriptedGuides] = []

    def make() -> ScriptedGuides:
        made.append(ScriptedGuides(VOCAB, EOS))
        return made[-1]

    lazy = LazyGuides(make)
    assert made == []
    threads = [threading.Thread(target=lazy.matcher, args=("5",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(made[0].made) == 8


def test_lazy_guides_that_cannot_be_made_are_tried_again() -> None:
    tries: list[int] = []

    def make() -> ScriptedGuides:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no tables")
        return ScriptedGuides(VOCAB, EOS)

    lazy = LazyGuides(make)
    with pytest.raises(OSError, match="no tables"):
        lazy.matcher("5")
    assert lazy.matcher("5 6", (5,)).mask()[0] == 1 << 6

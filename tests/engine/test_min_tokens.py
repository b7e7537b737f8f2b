"""An answer that is not to end before it has its minimum, through the whole engine."""

from typing import Any

import pytest

from engine.request import FinishReason, SamplingParams
from engine.submission import Submission
from tests.engine.rig import EOS, Bench
from tests.engine.scripted_guides import ScriptedGuides
from tests.engine.tiny import VOCAB

pytestmark = pytest.mark.usefixtures("each_loop")


def answer(bench: Bench, key: str, **params: Any) -> tuple[list[int], str]:
    bench.submit(key, **{"max_tokens": 12, **params})
    bench.run()
    return bench.inbox.tokens(key), bench.inbox.text(key)


@pytest.mark.parametrize("least", range(6))
def test_end_and_stop_tokens_are_not_chosen_before_the_minimum(least: int) -> None:
    favourites = {70: 100, 71: 99, 72: 98}
    bench = Bench(eos=70)
    tokens, _ = answer(
        bench,
        "a",
        min_tokens=least,
        ignore_eos=False,
        stop_token_ids=(71,),
        logit_bias=favourites,
    )
    assert tokens == [72] * least + [70]
    assert bench.inbox.of("a")[-1].finish is FinishReason.STOP


@pytest.mark.parametrize(("least", "end"), [(0, 2), (1, 2), (2, 4), (3, 4), (4, 6), (6, None)])
def test_a_stop_string_within_the_minimum_is_text_like_any_other(
    least: int, end: int | None
) -> None:
    """vLLM looks for stop strings from the token after the minimum on, and so does this."""
    tokens = [30, 31, 32, 31, 33, 31, 34]
    bench = Bench(guides=ScriptedGuides(VOCAB, EOS))
    grammar = " ".join(str(token) for token in [*tokens, 35, 36])
    params = SamplingParams(max_tokens=7, min_tokens=least, stop=("w31",), grammar=grammar)
    for made in range(end or 7):
        key = f"from {made}"
        bench.engine.submit(Submission(key, (5, 6), params, generated=tuple(tokens[:made])))
        bench.run()
        assert bench.inbox.tokens(key) == tokens[made:end]
        said = [f"w{token}" for token in tokens[made : end and end - 1]]
        assert bench.inbox.text(key).split() == said
        finish = bench.inbox.of(key)[-1].finish
        assert finish is (FinishReason.LENGTH if end is None else FinishReason.STOP)


def test_one_that_goes_on_elsewhere_has_the_same_minimum() -> None:
    """Counted anew, the minimum would be reached later than in one life."""
    bench = Bench(eos=70)
    params = SamplingParams(
        temperature=0.0, max_tokens=9, min_tokens=5, logit_bias={70: 100, 72: 99}
    )
    bench.engine.submit(Submission("whole", (5, 6, 7), params))
    bench.run()
    tokens = bench.inbox.tokens("whole")
    assert tokens == [72] * 5 + [70]
    for made in range(1, 6):
        key = f"from {made}"
        bench.engine.submit(Submission(key, (5, 6, 7), params, generated=tuple(tokens[:made])))
        bench.run()
        assert bench.inbox.tokens(key) == tokens[made:]

"""The estimate from data sheets."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.simulator.roofline import DEVICES, SHAPES, Roofline

LLAMA, H100 = SHAPES["llama-8b"], DEVICES["h100-sxm"]
ONE = Roofline(LLAMA, H100)
FOUR = Roofline(SHAPES["llama-70b"], H100, gpus=4)


def test_the_shapes_have_the_weights_that_their_models_have() -> None:
    # Guards against: a matrix that is left out or counted twice. The models' cards say 8.03,
    # 70.6 and 1.24 billion, embeddings included; the two small ones share theirs with the head.
    billions = {name: (s.layer_weights + s.head_weights) / 1e9 for name, s in SHAPES.items()}
    embeddings = 128256 * 4096 / 1e9
    assert billions["llama-8b"] + embeddings == pytest.approx(8.03, rel=0.002)
    assert billions["llama-70b"] + 2 * embeddings == pytest.approx(70.55, rel=0.002)
    assert billions["llama-1b"] == pytest.approx(1.236, rel=0.002)
    assert billions["smollm2-135m"] == pytest.approx(0.1345, rel=0.002)


def test_one_decode_by_hand() -> None:
    # 7.504 billion weights of two bytes and 1,000 tokens of 131,072 bytes, at 0.75 of 3.35 TB/s.
    read = (2 * 7_504_658_432 + 1000 * 131_072) / (0.75 * 3.35e12)
    assert LLAMA.layer_weights + LLAMA.head_weights == 7_504_658_432
    assert ONE.seconds(0, 0, 1, 1000) == pytest.approx(read + 1e-3 + 2e-6)


def test_a_long_prompt_by_hand() -> None:
    # Arithmetic decides: two operations a weight and token, one row of logits, and four a pair,
    # layer, head and number.
    pairs = 2048 * 2049 // 2
    operations = 2 * 6_979_321_856 * 2048 + 2 * 525_336_576 + 4 * 32 * 32 * 128 * pairs
    expected = operations / (0.55 * 989.5e12) + 1e-3 + 2e-6
    assert ONE.seconds(2048, pairs, 0, 0) == pytest.approx(expected)


def test_four_gpus_share_the_work_and_pay_for_their_sums() -> None:
    alone = Roofline(SHAPES["llama-70b"], H100)
    one, four = alone.seconds(0, 0, 8, 8000), FOUR.seconds(0, 0, 8, 8000)
    assert four > (one - 1e-3) / 4 + 1e-3 + 160 * 12e-6
    assert four < one / 2


@pytest.mark.parametrize("model", [ONE, FOUR])
@given(st.integers(0, 4000), st.integers(0, 9**7), st.integers(0, 400), st.integers(0, 9**7))
def test_more_to_do_never_takes_less(
    model: Roofline, prefill: int, pairs: int, decodes: int, context: int
) -> None:
    now = model.seconds(prefill, pairs, decodes, context)
    assert model.seconds(prefill + 1, pairs, decodes, context) >= now
    assert model.seconds(prefill, pairs + 1, decodes, context) >= now
    assert model.seconds(prefill, pairs, decodes + 1, context) >= now
    assert model.seconds(prefill, pairs, decodes, context + 1) >= now


def test_nothing_to_do_takes_no_time() -> None:
    assert (ONE.seconds(0, 0, 0, 0), ONE.copies(0)) == (0.0, 0.0)


def test_copies_go_through_the_hosts_link() -> None:
    assert ONE.copies(10) == pytest.approx(10 * 16 * 131_072 / (64e9 * 0.75))


@pytest.mark.parametrize(
    "change", [{"gpus": 0}, {"compute": 0.0}, {"memory": 1.5}, {"step_s": -1.0}]
)
def test_what_is_no_estimate_is_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(ONE, **change)  # type: ignore[arg-type]

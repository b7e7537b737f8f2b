"""The fit finds what steps were made of, whatever the machine did meanwhile."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.simulator.fitted import Fitted, errors, fit
from experiments.simulator.measured_step import MeasuredStep

PLANTED = Fitted(
    fixed=8e-3, knots=(4, 8, 32, 128, 512), slopes=(9e-4, 3e-4, 2.5e-4, 4.5e-4, 4.7e-4, 4.6e-4),
    decode=5e-5, pair=2e-7, context=1.5e-6,
)  # fmt: skip


def steps(count: int, noise: float, seed: int = 0) -> list[MeasuredStep]:
    """Steps such as a server makes; one in twelve was held up by something else."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        decodes = rng.choice([0, 1, 2, 4, 8, 16, 32, 64])
        prefill = 0 if decodes and rng.random() < 0.5 else int(2 ** rng.uniform(0, 11))
        context = sum(rng.randrange(20, 2000) for _ in range(decodes))
        pairs = prefill * rng.randrange(0, 1500) + prefill * (prefill + 1) // 2
        seconds = PLANTED.seconds(prefill, pairs, decodes, context)
        seconds *= 1 + rng.uniform(-noise, noise)
        if noise and rng.random() < 1 / 12:
            seconds *= rng.uniform(2, 20)
        made.append(MeasuredStep(prefill, pairs, decodes, context, seconds))
    return made


def test_without_noise_it_finds_every_coefficient() -> None:
    # Guards against: a feature that is computed otherwise for fitting than for predicting.
    found = fit(steps(400, 0.0))
    assert found.fixed == pytest.approx(PLANTED.fixed)
    assert found.slopes == pytest.approx(PLANTED.slopes)
    for name in ("decode", "pair", "context"):
        assert getattr(found, name) == pytest.approx(getattr(PLANTED, name))


def test_noise_and_hiccups_hardly_move_it() -> None:
    # Guards against: plain least squares, which one step of a second draws away.
    found = fit(steps(600, 0.05))
    off = sorted(abs(error) for error in errors(found, steps(300, 0.0, seed=1)))
    assert off[len(off) // 2] < 0.02
    assert off[int(0.9 * len(off))] < 0.05


@given(st.integers(0, 600), st.integers(0, 9**6), st.integers(0, 600), st.integers(0, 9**6))
def test_more_to_do_never_takes_less(prefill: int, pairs: int, decodes: int, context: int) -> None:
    now = PLANTED.seconds(prefill, pairs, decodes, context)
    assert PLANTED.seconds(prefill + 1, pairs, decodes, context) >= now
    assert PLANTED.seconds(prefill, pairs + 1, decodes, context) >= now
    assert PLANTED.seconds(prefill, pairs, decodes + 1, context) >= now
    assert PLANTED.seconds(prefill, pairs, decodes, context + 1) >= now


def test_a_long_step_goes_on_where_the_looked_up_ones_end() -> None:
    # Guards against: a jump, or an error, at the end of what is worked out beforehand.
    each = PLANTED.slopes[-1]
    for rows in (4094, 4095, 4096, 100_000):
        more = PLANTED.seconds(rows + 1, 0, 0, 0) - PLANTED.seconds(rows, 0, 0, 0)
        assert more == pytest.approx(each)


def test_hand_example() -> None:
    # 40 rows: 4 at 9e-4, 4 at 3e-4, 24 at 2.5e-4, 8 at 4.5e-4.
    rows = 8e-3 + 4 * 9e-4 + 4 * 3e-4 + 24 * 2.5e-4 + 8 * 4.5e-4
    made = PLANTED.seconds(prefill=30, pairs=465, decodes=10, context=1000)
    assert made == pytest.approx(rows + 10 * 5e-5 + 465 * 2e-7 + 1000 * 1.5e-6)
    assert PLANTED.seconds(0, 0, 0, 0) == 0.0


def test_copies() -> None:
    model = replace(PLANTED, copy=1e-4, copy_block=2e-5)
    assert (model.copies(0), model.copies(3)) == (0.0, pytest.approx(1.6e-4))


def test_knots_that_no_step_reaches_are_left_out() -> None:
    # Guards against: slopes of 0 where nothing was measured, so that long prompts cost nothing.
    short = [step for step in steps(900, 0.0) if step.prefill + step.decodes <= 100]
    found = fit(short)
    assert found.knots == (4, 8, 32)
    assert found.slopes[-1] == pytest.approx(4.5e-4, rel=0.01)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        fit(steps(10, 0.0))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fixed": -1.0}, "fixed"),
        ({"pair": float("nan")}, "pair"),
        ({"knots": (8, 8, 9, 10, 11)}, "knots"),
        ({"slopes": (1.0,)}, "slopes"),
    ],
)
def test_what_is_no_model_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(PLANTED, **change)  # type: ignore[arg-type]

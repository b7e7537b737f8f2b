"""Made-up loads: rates, lengths and conversations as their text says, the same for one seed."""

import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from experiments.loads.errors import SpecError, TraceError
from experiments.loads.load import Load
from experiments.loads.spec import is_spec, load_named, load_of_spec

FIXED = "prompt=10,output=2"


def made(text: str, seed: int = 1) -> Load:
    return load_of_spec(text, Random(seed))


def in_each(load: Load, seconds: float) -> Counter[int]:
    return Counter(int(one.at // seconds) for one in load.arrivals)


@pytest.mark.parametrize(
    "text",
    [
        f"constant:rate=5,seconds=20,{FIXED}",
        f"poisson:rate=5,seconds=20,{FIXED}",
        f"bursts:rate=1,size=5,every=4,seconds=20,{FIXED}",
        f"square:low=1,high=9,period=4,seconds=20,{FIXED}",
        f"diurnal:low=1,high=9,period=10,seconds=20,{FIXED}",
        f"conversations:rate=1,turns=4,think=2,seconds=20,{FIXED}",
    ],
)
def test_a_load_is_sorted_within_its_time_and_the_same_for_one_seed(text: str) -> None:
    load = made(text)
    times = [one.at for one in load.arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 20
    assert load.name == text
    assert made(text) == load
    assert text.startswith("constant") or made(text, seed=2) != load


def test_constant_comes_like_clockwork() -> None:
    assert [one.at for one in made(f"constant:rate=4,seconds=1,{FIXED}").arrivals] == [
        0.0,
        0.25,
        0.5,
        0.75,
    ]


def test_poisson_has_its_rate_and_its_spread() -> None:
    counts = in_each(made(f"poisson:rate=20,seconds=400,{FIXED}"), 1.0)
    of_each = [counts[second] for second in range(400)]
    assert statistics.fmean(of_each) == pytest.approx(20, rel=0.05)
    assert statistics.variance(of_each) == pytest.approx(20, rel=0.25)


def test_a_burst_is_all_there_within_its_time() -> None:
    load = made(f"bursts:rate=0,size=30,every=50,within=0.5,seconds=500,{FIXED}")
    first = load.arrivals[0].at
    assert sum(first <= one.at < first + 0.5 for one in load.arrivals) >= 30
    assert len(load.arrivals) > 5 * 30


def test_square_is_high_in_the_last_share_of_each_period() -> None:
    load = made(f"square:low=0,high=50,period=10,share=0.2,seconds=100,{FIXED}")
    assert {int(one.at % 10) for one in load.arrivals} == {8, 9}
    assert len(load.arrivals) == pytest.approx(50 * 20, rel=0.1)


def test_diurnal_is_lowest_at_the_start_and_highest_in_the_middle() -> None:
    counts = in_each(made(f"diurnal:low=10,high=100,period=100,seconds=100,{FIXED}"), 10.0)
    assert counts[4] + counts[5] > 4 * (counts[0] + counts[9])
    assert sum(counts.values()) == pytest.approx(5500, rel=0.05)


def test_lengths_are_from_their_distributions() -> None:
    text = "constant:rate=100,seconds=20,prompt=lognormal:200:0.7,output=uniform:3:5"
    load = made(text)
    prompts = [one.prompt_tokens for one in load.arrivals]
    assert statistics.median(prompts) == pytest.approx(200, rel=0.1)
    assert max(prompts) > 800
    assert {one.output_tokens for one in load.arrivals} == {3, 4, 5}


def test_lengths_of_a_trace_stay_in_pairs(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at,prompt_tokens,output_tokens\n0,10,1\n1,20,2\n")
    load = made(f"constant:rate=10,seconds=5,lengths={path}")
    pairs = {(one.prompt_tokens, one.output_tokens) for one in load.arrivals}
    assert pairs == {(10, 1), (20, 2)}
    with pytest.raises(TraceError, match="a file that can be read"):
        made(f"constant:rate=1,seconds=5,lengths={path}2")


def test_a_turn_begins_with_all_that_was_said() -> None:
    """Its pieces must say so: they are all that a prefix cache has to go by."""
    text = "conversations:rate=0.05,turns=3,think=5,system=40,piece=8,seconds=100"
    load = made(f"{text},prompt=10,output=6")
    system = tuple(range(5))
    assert load.piece_tokens == 8
    assert all(one.pieces[:5] == system for one in load.arrivals)
    by_start: dict[int, list[tuple[int, ...]]] = {}
    for one in load.arrivals:
        assert len(one.pieces) == -(-one.prompt_tokens // 8)
        by_start.setdefault(one.pieces[5], []).append(one.pieces)
    # 40 + 10, then 16 more each turn.
    assert {one.prompt_tokens for one in load.arrivals} == {50, 66, 82}
    for turns in by_start.values():
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
    own = [set(turns[-1][5:]) for turns in by_start.values()]
    assert len(own) > 1
    assert sum(map(len, own)) == len(set().union(*own)), "two conversations share their own words"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("waves:rate=1", "a load must be one of constant, poisson, bursts, square, diurnal, conv"),
        ("poisson", "rate of poisson must be given"),
        ("poisson:", "rate of poisson must be given"),
        ("poisson:rate=1,seconds=5", "prompt of poisson must be given"),
        ("poisson:rate=1,seconds=5,prompt=1", "output of poisson must be given"),
        ("poisson:rate=0,seconds=5", "rate of poisson must be a number from 1e-06 to 1e+06"),
        ("poisson:rate=nan,seconds=5", "rate of poisson must be a number from 1e-06 to"),
        ("poisson:rate=x,seconds=5", "rate of poisson must be a number from 1e-06 to 1e+06"),
        ("poisson:rate", "poisson must have NAME=VALUE between its commas, not 'rate'"),
        ("poisson:rate=1,rate=2", "rate of poisson must be there once, not with '1' and '2'"),
        (f"poisson:rate=1,seconds=5,{FIXED},turns=2", "poisson takes rate, seconds, prompt, "),
        (f"poisson:rate=1e6,seconds=1e6,{FIXED}", "must have at most 10000000 requests"),
        (f"poisson:rate=1e-6,seconds=1,{FIXED}", "no request comes of poisson:rate=1e-6"),
        ("poisson:rate=1,seconds=5,prompt=0,output=1", "prompt must be a whole number from 1 to"),
        ("poisson:rate=1,seconds=5,prompt=1.5,output=1", "prompt must be a whole number from 1 to"),
        ("poisson:rate=1,seconds=5,prompt=zipf:2,output=1", "prompt must be N, uniform"),
        ("poisson:rate=1,seconds=5,prompt=uniform:9,output=1", "prompt must be N, uniform"),
        ("poisson:rate=1,seconds=5,prompt=uniform:9:2,output=1", "low before its high, not 'unif"),
        ("poisson:rate=1,seconds=5,prompt=lognormal:9:9,output=1", "the sigma of prompt must"),
        (f"poisson:rate=1,seconds=5,lengths=x,{FIXED}", "prompt of poisson must not be given besi"),
        (f"bursts:rate=1,size=1.5,every=9,seconds=5,{FIXED}", "size of bursts must be a whole num"),
        (f"conversations:rate=1,seconds=5,{FIXED}", "turns of conversations must be given"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as wrong:
        made(text)
    assert message in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_path_is_no_spec() -> None:
    assert is_spec("poisson:rate=1")
    assert is_spec("poisson")
    assert not is_spec("poisson.csv")
    assert not is_spec("./trace.jsonl")


def test_a_slip_in_a_kind_names_the_kinds(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="poison:rate=1 is no file, and a load must be one of con"):
        load_named("poison:rate=1", Random(0))
    there = tmp_path / "a:b.csv"
    there.write_text("at,prompt_tokens,output_tokens\n0,1,1\n")
    assert len(load_named(str(there), Random(0)).arrivals) == 1

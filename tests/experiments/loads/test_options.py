"""The options of a command line that say which load is meant."""

import argparse
from pathlib import Path

import pytest

from experiments.loads.errors import LoadError
from experiments.loads.load import Load
from experiments.loads.options import add_load_options, add_save_options, load_of, save_of
from experiments.loads.traces import read_trace, write_trace

SPEC = "poisson:rate=10,seconds=30,prompt=uniform:50:150,output=20"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_load_options(parser)
    add_save_options(parser)
    return parser.parse_args(["--trace", *arguments])


def load(*arguments: str) -> Load:
    return load_of(parsed(*arguments))


def test_each_option_does_what_it_says() -> None:
    plain = load(SPEC)
    window = load(SPEC, "--start", "5", "--seconds", "10", "--rate-scale", "2")
    cut = [one for one in plain.arrivals if 5 <= one.at < 15]
    assert [one.at for one in window.arrivals] == [(one.at - 5) / 2 for one in cut]
    short = load(SPEC, "--length-scale", "0.5", "--prompt-scale", "0.2")
    assert [one.prompt_tokens for one in short.arrivals] == [
        round(one.prompt_tokens * 0.1) for one in plain.arrivals
    ]
    assert {one.output_tokens for one in short.arrivals} == {10}
    assert window.name == f"{SPEC} (start 5, seconds 10, rate scale 2)"
    assert plain.name == SPEC
    assert len(load(SPEC, "--repeat", "3").arrivals) == 3 * len(plain.arrivals)


def test_one_seed_is_one_load_and_one_rule_does_not_change_another() -> None:
    rules = ("--priorities", "1:0.5,0:0.5", "--tenants", "a:0.5,b:0.5")
    both = load(SPEC, *rules)
    assert load(SPEC, *rules) == both
    assert load(SPEC, *rules, "--seed", "1").arrivals != both.arrivals
    alone = load(SPEC, *rules[2:])
    assert [one.tenant for one in alone.arrivals] == [one.tenant for one in both.arrivals]
    # Drawn from one stream, the urgent ones would all be of one tenant.
    assert {(one.priority, one.tenant) for one in both.arrivals} == {
        (priority, tenant) for priority in (0, 1) for tenant in "ab"
    }


def test_how_many_were_cut_is_said() -> None:
    said: list[str] = []
    capped = load_of(parsed(SPEC, "--cap-tokens", "100"), said.append)
    long = sum(one.prompt_tokens > 80 for one in load(SPEC).arrivals)
    assert max(one.prompt_tokens for one in capped.arrivals) == 80
    assert said == [f"{long} of {len(capped.arrivals)} requests are cut to 100 tokens."]


def test_a_format_that_is_named_is_used(tmp_path: Path) -> None:
    """guidellm's own lines look like Mooncake's, and are in seconds."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 5}\n'
        '{"timestamp": 2, "input_length": 5, "output_length": 5}\n'
    )
    assert load(str(path)).seconds == 0.002
    assert load(str(path), "--format", "guidellm").seconds == 2.0


def test_a_saved_load_is_the_same_load(tmp_path: Path) -> None:
    options = parsed(SPEC, "--priorities", "1:0.5,0:0.5", "--save-load", str(tmp_path / "saved"))
    made = load_of(options)
    save = save_of(options)
    assert save == (options.save_load, "csv")
    write_trace(made, *save)
    assert read_trace(options.save_load).arrivals == made.arrivals


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate-scale", "0"),
        ("--length-scale", "nan"),
        ("--seconds", "0"),
        ("--start", "-1"),
        ("--repeat", "0"),
        ("--cap-tokens", "1"),
        ("--seed", "x"),
    ],
)
def test_what_no_load_can_have_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(SPEC, *arguments)
    assert f"argument {arguments[0]}: must be " in capsys.readouterr().err


def test_no_such_trace_is_one_line() -> None:
    with pytest.raises(LoadError, match=r"^no-such-kind:rate=1 is no file, and a load must"):
        load("no-such-kind:rate=1")

"""Step-time models by name and file, and what is said of broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.simulator.fitted import Fitted
from experiments.simulator.roofline import SHAPES, Roofline
from experiments.simulator.step_models import (
    StepTimeError,
    fitted_json,
    load_described,
    load_step_time,
    shape_of,
    table_json,
)
from experiments.simulator.time_table import TimeTable

FITTED = Fitted(8e-3, (8, 32), (3e-4, 2e-4, 1e-4), 5e-5, 2e-7, 1.5e-6, copy_block=1e-5)
TABLE = TimeTable((0, 100), (1, 8, 16), (0,), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 0.25, 0.5)
CSV = "prefill,decodes,context,milliseconds\n0,1,0,4\n100,1,0,20.5\n100,8,0,22\n0,8,0,6\n"


def test_a_fit_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    file.write_text(fitted_json(FITTED, {"model": "demo", "steps": 12}))
    assert load_step_time(str(file)) == FITTED
    assert load_described(str(file)).what == "fitted, fit.json: model demo, steps 12"


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(table_json(TABLE, {}))
    assert load_step_time(str(file)) == TABLE
    assert load_described(str(file)).what == "table, gpu.json"


def test_a_table_can_be_rows_in_any_order(tmp_path: Path) -> None:
    # Guards against: values that are laid out in the file's order, not the axes'.
    file = tmp_path / "gpu.csv"
    file.write_text(CSV)
    time = load_step_time(str(file))
    assert time == TimeTable((0, 100), (1, 8), (0,), (4.0, 6.0, 20.5, 22.0))


def test_names_of_estimates() -> None:
    named = load_described("llama-70b@4xh100-sxm")
    assert isinstance(named.time, Roofline)
    assert (named.time.shape, named.time.gpus) == (SHAPES["llama-70b"], 4)
    assert "an estimate" in named.what
    assert "not measured" in named.what
    one = load_step_time("llama-8b@h200")
    assert isinstance(one, Roofline)
    assert one.gpus == 1


def test_a_folders_shape_is_read_from_its_config(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of(tmp_path) == SHAPES["llama-8b"]
    time = load_step_time(f"{tmp_path}@l4")
    assert isinstance(time, Roofline)
    assert time.shape == SHAPES["llama-8b"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": "x"}))
    with pytest.raises(StepTimeError, match=r"config\.json: hidden_size is 'x'"):
        load_step_time(f"{tmp_path}@l4")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nothing", "MODEL@DEVICE"),
        ("llama-8b@h300", "device is 'h300', not one of h100-sxm"),
        ("llama-9b@h200", "model is 'llama-9b', not a folder"),
        ("llama-8b@0xh200", "number of GPUs is 0"),
        ("none.json", "none.json: there is no such file"),
    ],
)
def test_what_is_no_model_is_told_by_name(spec: str, said: str) -> None:
    with pytest.raises(StepTimeError, match=said):
        load_step_time(spec)


def broken(text: str, **change: Any) -> str:
    values = json.loads(text)
    for name, value in change.items():
        if value is None:
            del values[name]
        else:
            values[name] = value
    return json.dumps(values)


FIT_TEXT, TABLE_TEXT = fitted_json(FITTED, {}), table_json(TABLE, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting"),
        ("[]", "not a JSON object"),
        ("{}", "kind is None"),
        (broken(FIT_TEXT, pair=None), "pair is missing"),
        (broken(FIT_TEXT, fixed=-1), "fixed is -1.0"),
        (broken(FIT_TEXT, fixed="fast"), "fixed has 'fast', not a number"),
        (broken(FIT_TEXT, slopes=3), "slopes is 3, not a list"),
        (broken(FIT_TEXT, knots=[1.5, 2]), "knots has 1.5, not a whole number"),
        (broken(FIT_TEXT, speed=3), "unknown: speed"),
        (broken(FIT_TEXT, about=3), "about is 3"),
        (FIT_TEXT.replace("0.008", "NaN"), "fixed is nan"),
        (FIT_TEXT.replace("0.008", "1" + "0" * 400), "fixed is too large for a number"),
        (broken(TABLE_TEXT, prefill=[0, 10**400]), "prefill has a number above 10{12}$"),
        ("[" * 100_000, "recursion"),
        (broken(TABLE_TEXT, milliseconds=[[[1]]]), "milliseconds is not a list of 2"),
        (broken(TABLE_TEXT, milliseconds=[[[1]], [[1]]]), r"milliseconds\[0\] is not a list of 3"),
        (broken(TABLE_TEXT, prefill=[5, 2]), r"prefill is \[5, 2\]"),
    ],
)
def test_a_broken_file_is_told_by_its_name_and_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(StepTimeError, match=rf"bad\.json: .*{said}"):
        load_step_time(str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "bad.csv:1: the columns are '', not prefill,decodes,context,milliseconds$"),
        (CSV.replace("context", "ctx"), "bad.csv:1: the columns are 'prefill,decodes,ctx,mill"),
        (CSV + "1,2\n", "bad.csv:6: 2 values, not 4"),
        (CSV.replace("20.5", "fast"), "bad.csv:3: '100,1,0,fast' is not three whole numbers and"),
        (CSV.replace("20.5", "-1"), "bad.csv:3: milliseconds is -1"),
        (CSV + "0,1,0,4\n", "bad.csv:6: the row of prefill 0, decodes 1, context 0 is there twic"),
        (CSV + "0,16,0,4\n", "bad.csv: the row of prefill 100, decodes 16, context 0 is missing$"),
        (CSV.splitlines()[0], "bad.csv: prefill is"),
        (CSV + "9" * 200_000 + ",1,0,4\n", "bad.csv:6: field larger than field limit"),
        (CSV + "9" * 400 + ",1,0,4\n", "bad.csv:6: a node has a number above 10{12}$"),
        (CSV.replace("20.5", "é").encode("latin-1"), "bad.csv: is not UTF-8 text"),
    ],
)
def test_a_broken_table_is_told_by_its_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(StepTimeError, match=said):
        load_step_time(str(file))


def test_the_table_in_the_documentation_is_one(tmp_path: Path) -> None:
    # Guards against: a format that is documented otherwise than it is read.
    page = Path(__file__).parents[3] / "docs/experiments/step-times.md"
    _, _, rest = page.read_text().partition("```\nprefill,")
    file = tmp_path / "gpu.csv"
    file.write_text(f"prefill,{rest.partition('```')[0]}")
    time = load_step_time(str(file))
    assert time.seconds(0, 0, 64, 64 * 2048) == pytest.approx(11.5e-3)

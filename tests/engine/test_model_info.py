import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model_info import ModelNotFound, ModelUnreadable, check_folder, model_info


def edit(folder: Path, name: str = "config.json", **values: Any) -> None:
    """Set keys of a JSON file in a model folder; None removes one."""
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(values)
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(kept))


def test_an_error_is_one_line_of_bounded_length() -> None:
    error = ModelUnreadable("a model", "first\n  second" + " and so on" * 200)
    assert error.reason.startswith("first second and")
    assert len(error.reason) == 400


def test_the_shape_is_read_from_the_config(tiny_model_dir: Path) -> None:
    info = model_info(tiny_model_dir)
    assert info.architecture == "LlamaForCausalLM"
    assert (info.max_model_len, info.vocab_size, info.dtype) == (128, 258, "float32")
    assert (info.num_layers, info.num_attention_heads, info.num_kv_heads) == (2, 4, 2)
    assert info.head_dim == 8
    assert info.eos_token_ids == (257,)


def test_the_demo_model_stops_at_the_end_of_its_turn(demo_model_dir: Path) -> None:
    info = model_info(demo_model_dir)
    assert info.eos_token_ids == (2,)
    assert (info.max_model_len, info.dtype) == (8192, "bfloat16")
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (30, 3, 64)


def test_older_configs_leave_out_what_follows_from_the_rest(tiny_copy: Path) -> None:
    edit(tiny_copy, head_dim=None, num_key_value_heads=None, dtype=None, torch_dtype="float16")
    info = model_info(tiny_copy)
    assert (info.head_dim, info.num_kv_heads, info.dtype) == (8, 4, "float16")


def test_end_tokens_of_both_configs_count(tiny_copy: Path) -> None:
    # Llama 3's turns end with a token that only generation_config.json names.
    edit(tiny_copy, eos_token_id=7)
    edit(tiny_copy, "generation_config.json", eos_token_id=[9, 7])
    assert model_info(tiny_copy).eos_token_ids == (9, 7)
    (tiny_copy / "generation_config.json").unlink()
    assert model_info(tiny_copy).eos_token_ids == (7,)
    edit(tiny_copy, eos_token_id=None)
    assert model_info(tiny_copy).eos_token_ids == ()


def test_attention_in_chunks_caps_the_length(tiny_copy: Path) -> None:
    """Full attention beyond a chunk would give fluent, wrong answers."""
    edit(tiny_copy, attention_chunk_size=40)
    assert model_info(tiny_copy).max_model_len == 40


def test_a_sliding_window_caps_the_length(tiny_copy: Path) -> None:
    edit(tiny_copy, sliding_window=50)
    assert model_info(tiny_copy).max_model_len == 50
    edit(tiny_copy, use_sliding_window=False)
    assert model_info(tiny_copy).max_model_len == 128


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_rope_that_changes_with_the_longest_sequence_caps_the_length(
    tiny_copy: Path, key: str, inside: bool
) -> None:
    """One long sequence in a step would change the angles of all others."""
    rope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}
    original = {"original_max_position_embeddings": 40}
    edit(tiny_copy, **{key: {**rope, **original} if inside else rope}, **original)
    assert model_info(tiny_copy).max_model_len == 40
    edit(tiny_copy, **{key: {"type": "linear", "factor": 2.0}})
    assert model_info(tiny_copy).max_model_len == 128


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tiny_copy: Path, missing: str) -> None:
    (tiny_copy / missing).unlink()
    with pytest.raises(ModelNotFound, match=missing):
        check_folder(tiny_copy)


def test_a_missing_shard_is_named(tiny_copy: Path) -> None:
    shutil.move(tiny_copy / "model.safetensors", tiny_copy / "model-00001-of-00002.safetensors")
    weight_map = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    edit(tiny_copy, "model.safetensors.index.json", weight_map=weight_map)
    with pytest.raises(ModelNotFound, match="model-00002-of-00002"):
        model_info(tiny_copy)


@pytest.mark.parametrize(
    "broken",
    [
        {"architectures": ["T5ForConditionalGeneration"]},
        {"architectures": None},
        {"max_position_embeddings": None},
        {"vocab_size": "many"},
        {"num_hidden_layers": 0},
        {"num_key_value_heads": -1},
    ],
)
def test_a_config_that_cannot_be_served_is_refused(tiny_copy: Path, broken: dict[str, Any]) -> None:
    edit(tiny_copy, **broken)
    with pytest.raises(ModelUnreadable) as caught:
        model_info(tiny_copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_config_that_is_no_json_object_is_refused(tiny_copy: Path, text: str) -> None:
    (tiny_copy / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelUnreadable, match=r"config\.json"):
        model_info(tiny_copy)


def test_weights_cut_short_are_refused(tiny_copy: Path) -> None:
    weights = tiny_copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelUnreadable, match="cut short"):
        model_info(tiny_copy)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 64, b"\x02" + b"\x00" * 7 + b"[]"])
def test_weights_that_are_something_else_are_refused(tiny_copy: Path, content: bytes) -> None:
    # The last of them is valid JSON, as a download's error page may be.
    (tiny_copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelUnreadable, match="not a safetensors file"):
        model_info(tiny_copy)


def test_the_revision_is_of_the_content_not_of_the_place(
    tiny_model_dir: Path, tiny_copy: Path
) -> None:
    assert model_info(tiny_model_dir).revision == model_info(tiny_copy).revision


def test_another_fine_tune_has_another_revision(tiny_copy: Path) -> None:
    # Same shapes, same names, same sizes: only one tensor's values differ.
    before = model_info(tiny_copy).revision
    weights = load_file(tiny_copy / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"] += torch.ones(1)
    save_file(weights, tiny_copy / "model.safetensors", metadata={"format": "pt"})
    assert model_info(tiny_copy).revision != before


def test_another_tokenizer_has_another_revision(tiny_copy: Path) -> None:
    before = model_info(tiny_copy).revision
    tokenizer = tiny_copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert model_info(tiny_copy).revision != before

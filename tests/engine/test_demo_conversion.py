"""The conversion itself, on a GGUF file of a few KiB made as the demo model's is."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from tokenizers.pre_tokenizers import ByteLevel

from engine.demo_model import convert_gguf
from engine.loader import load_model, load_tokenizer, model_info
from engine.model_info import ModelUnreadable

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]
TOKENS = [*CONTROL, *sorted(ByteLevel.alphabet()), "ĠĠ", "lo"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}{% endfor %}"
HIDDEN, HEADS, KV_HEADS, WIDE = 64, 2, 1, 64


def add_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    kinds = [TokenType.CONTROL if token in CONTROL else TokenType.NORMAL for token in TOKENS]
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ Ġ", "l o"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def add_weights(writer: GGUFWriter) -> None:
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (WIDE, HIDDEN),
        "blk.0.ffn_up": (WIDE, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, WIDE),
    }
    kind = GGMLQuantizationType.Q4_1
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(f"{name}.weight", quants.quantize(values, kind), raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(96)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    add_tokenizer(writer)
    add_weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(gguf: Path) -> Path:
    convert_gguf(gguf, gguf.parent / "model")
    return gguf.parent / "model"


def test_the_model_is_plain_bf16_safetensors(converted: Path) -> None:
    info = model_info(converted)
    assert (info.dtype, info.max_model_len, info.eos_token_ids) == ("bfloat16", 96, (2,))
    # The quantiser's mark would make transformers look for quantised weights.
    assert "quantization_config" not in json.loads((converted / "config.json").read_text())
    assert str(load_model(converted).dtype) == "torch.bfloat16"


def test_every_control_token_is_one_id_and_never_text(converted: Path) -> None:
    tokenizer = load_tokenizer(converted)
    for token, text in enumerate(CONTROL):
        assert tokenizer.encode(text) == [token]
        assert tokenizer.decode([token], skip_special_tokens=True) == ""


def test_the_named_special_tokens_are_the_files(converted: Path) -> None:
    # One version of transformers' own reader names the first as both.
    tokenizer = load_tokenizer(converted)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert (tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 2)


def test_digits_are_split_off_first(converted: Path) -> None:
    tokenizer = load_tokenizer(converted)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]


def test_decoding_changes_no_space(converted: Path) -> None:
    tokenizer = load_tokenizer(converted)
    text = " a , b . c  's\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_context_length_and_the_template_come_along(converted: Path) -> None:
    tokenizer = load_tokenizer(converted)
    assert tokenizer.model_max_length == 96
    assert tokenizer.chat_template == TEMPLATE


def test_a_file_that_is_no_gguf_is_a_clear_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all" * 10)
    with pytest.raises(ModelUnreadable, match="cannot be converted"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()

"""What can be known of a model folder without loading the model, and without torch.

The gateway needs the context length and the end tokens, the replica the shape of a
KV block; both read them from here, so importing this module has to stay cheap.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_SAMPLE_BYTES = 4096
_REASON_LIMIT = 400
_HEADER_LIMIT = 100_000_000
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class ModelError(Exception):
    """A model cannot be served; ``str()`` is one line fit for a terminal.

    Attributes:
        model: the name or folder that was asked for.
        reason: what is wrong with it.
    """

    def __init__(self, model: str, reason: str) -> None:
        # Reasons quote other libraries' errors, which can run over pages.
        reason = " ".join(reason.split())
        if len(reason) > _REASON_LIMIT:
            reason = reason[: _REASON_LIMIT - 3] + "..."
        # Both arguments reach args, so the error survives pickling between processes.
        super().__init__(model, reason)
        self.model = model
        self.reason = reason

    def __str__(self) -> str:
        return f"model {self.model!r}: {self.reason}"


class ModelNotFound(ModelError):
    """There is no such model, or a file that it needs is missing."""


class ModelUnreadable(ModelError):
    """The model's files are there, but broken or of an unsupported kind."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The shape of a model.

    Attributes:
        max_model_len: longest sequence in tokens, prompt and output together.
        vocab_size: width of the logits; may exceed the tokenizer's vocabulary.
        dtype: name of the dtype the weights were saved in, e.g. ``"bfloat16"``.
        eos_token_ids: every token that ends an answer, generation_config.json's first.
        num_layers, num_attention_heads, num_kv_heads, head_dim: the attention's shape.
        architecture: class name, e.g. ``"LlamaForCausalLM"``.
        revision: hex digest of the content; equal files give equal revisions anywhere.
    """

    max_model_len: int
    vocab_size: int
    dtype: str
    eos_token_ids: tuple[int, ...]
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    architecture: str
    revision: str


def model_info(folder: str | Path) -> ModelInfo:
    """Read the shape of the model in ``folder``.

    Raises:
        ModelNotFound: a file is missing.
        ModelUnreadable: a file is damaged, or the model is not a decoder-only causal LM.
    """
    folder = Path(folder)
    check_folder(folder)
    config = _read_json(folder, "config.json")
    architectures = config.get("architectures") or ["(none named)"]
    architecture = str(architectures[0])
    if not architecture.endswith("ForCausalLM"):
        raise ModelUnreadable(
            str(folder), f"architecture {architecture} is not supported, only ...ForCausalLM"
        )
    heads = _positive(folder, config, "num_attention_heads")
    return ModelInfo(
        max_model_len=_context_length(folder, config),
        vocab_size=_positive(folder, config, "vocab_size"),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        eos_token_ids=_eos_token_ids(folder, config),
        num_layers=_positive(folder, config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_kv_heads=_positive(folder, config, "num_key_value_heads", heads),
        head_dim=_head_dim(folder, config, heads),
        architecture=architecture,
        revision=_revision(folder),
    )


def check_folder(folder: Path) -> None:
    """Raise ModelNotFound unless ``folder`` holds a config, a tokenizer and all weights."""
    if not (folder / "config.json").is_file():
        raise ModelNotFound(str(folder), "the folder has no config.json")
    weight_files(folder)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelNotFound(str(folder), "the folder has no tokenizer (tokenizer.json)")


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold the weights, in name order, each of them present.

    Raises:
        ModelNotFound: there are none, or the index names a shard that is missing.
        ModelUnreadable: the index is damaged.
    """
    # The order in which transformers looks.
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return (folder / name,)
        index = f"{name}.index.json"
        if (folder / index).is_file():
            return _shards(folder, index)
    raise ModelNotFound(str(folder), "the folder has no weights (model.safetensors)")


def _shards(folder: Path, index: str) -> tuple[Path, ...]:
    weight_map = _read_json(folder, index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelUnreadable(str(folder), f"{index} has no weight_map")
    shards = tuple(folder / str(name) for name in sorted(set(weight_map.values())))
    for shard in shards:
        if not shard.is_file():
            raise ModelNotFound(str(folder), f"{shard.name} is missing")
    return shards


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads((folder / name).read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnreadable(str(folder), f"{name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnreadable(str(folder), f"{name} is not a JSON object")
    return value


def _positive(folder: Path, config: dict[str, Any], name: str, default: int = 0) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or value < 1:
        raise ModelUnreadable(str(folder), f"config.json has no usable {name}: {value!r}")
    return value


def _head_dim(folder: Path, config: dict[str, Any], heads: int) -> int:
    if config.get("head_dim") is not None:
        return _positive(folder, config, "head_dim")
    return _positive(folder, config, "hidden_size") // heads


def _context_length(folder: Path, config: dict[str, Any]) -> int:
    length = _positive(folder, config, "max_position_embeddings")
    # Attention here is always full. It equals a sliding window's, or one in chunks, up to
    # the window's length, so a longer sequence is not offered.
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    for limit in (window, config.get("attention_chunk_size")):
        if isinstance(limit, int) and limit > 0:
            length = min(length, limit)
    # Past its original length this rope gives the whole batch other angles.
    for rope in _ropes(config):
        if {rope.get("rope_type"), rope.get("type")} & {"longrope", "su"}:
            original = {**config, **rope}.get("original_max_position_embeddings")
            if isinstance(original, int) and original > 0:
                length = min(length, original)
    return length


def _ropes(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of rotary embeddings, old name or new, of all kinds of layers."""
    found = [config.get("rope_parameters"), config.get("rope_scaling")]
    found += [kind for rope in found if isinstance(rope, dict) for kind in rope.values()]
    return [rope for rope in found if isinstance(rope, dict)]


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    # A chat model's turn often ends with a token that only generation_config.json names,
    # its text with the one in config.json: either ends an answer.
    sources = [config]
    if (folder / "generation_config.json").is_file():
        sources.insert(0, _read_json(folder, "generation_config.json"))
    ids: dict[int, None] = {}
    for source in sources:
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int):
                ids[token] = None
    return tuple(ids)


def _revision(folder: Path) -> str:
    """Digest of the small files and of a sample of every tensor: cheap for any model size.

    Headers alone would not tell two fine-tunes of one model apart, so a few KiB from the
    middle of each tensor count too.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model"):
        if (folder / name).is_file():
            digest.update(name.encode())
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    for path in weight_files(folder):
        digest.update(path.name.encode())
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        for sample in _samples(folder, path):
            digest.update(sample)
    return digest.hexdigest()


def _samples(folder: Path, path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            header, spans = _read_header(folder, path.name, file)
            yield header
        else:
            spans = [(0, size // 2), (size // 2, size)]
        needed = max((stop for _, stop in spans), default=0)
        if size < needed:
            raise ModelUnreadable(
                str(folder), f"{path.name} is cut short: {size} of {needed} bytes"
            )
        for begin, stop in spans:
            middle = (begin + stop) // 2
            file.seek(middle)
            yield file.read(min(_SAMPLE_BYTES, stop - middle))


def _read_header(folder: Path, name: str, file: BinaryIO) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a safetensors file's header and where its tensors lie, (begin, end) in bytes.

    Format: 8 bytes of little-endian length, then that much JSON, then the tensors, whose
    offsets count from the header's end ("Format" in the documentation of safetensors).
    """
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _HEADER_LIMIT:
            raise ValueError(f"a header of {length} bytes")
        header = file.read(length)
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        start = 8 + length
        offsets = (tensors[key]["data_offsets"] for key in sorted(tensors))
        return header, [(start + int(begin), start + int(stop)) for begin, stop in offsets]
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelUnreadable(str(folder), f"{name} is not a safetensors file: {error}") from error

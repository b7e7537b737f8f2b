"""From a model's name to its files, its tokenizer and its weights.

A model is the word ``demo``, a local folder, or a name on the Hugging Face Hub.
Importing this module imports neither torch nor transformers.  Code that comes with a
model is never run; left to its default, transformers would ask for it on the terminal.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.demo_model import DEMO_MODEL, DEMO_NAME, demo_folder
from engine.model_info import (
    ModelError,
    ModelInfo,
    ModelNotFound,
    ModelUnreadable,
    check_folder,
    model_info,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = [
    "DEMO_MODEL",
    "DEMO_NAME",
    "ModelError",
    "ModelInfo",
    "ModelNotFound",
    "ModelUnreadable",
    "load_model",
    "load_tokenizer",
    "model_info",
    "resolve",
]

_HUB_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
# Folders in a repository hold other formats of the same model, and "consolidated" files
# hold a second copy of the weights.
_HUB_SKIPPED = ["*/*", "consolidated*"]


def resolve(model: str | Path | None) -> Path:
    """Return the local folder of ``model``, fetching it first if need be.

    Args:
        model: None or ``"demo"`` for the demo model; a local folder; else a Hub name.
            A folder that is called ``demo`` is named ``./demo``.

    Raises:
        ModelNotFound: nothing has that name, or a needed file is missing.
        ModelUnreadable: it is there but broken.
    """
    if model is None or model == DEMO_MODEL:
        return demo_folder()
    path = Path(model).expanduser()
    if path.is_dir():
        folder = path.resolve()
        check_folder(folder)
        return folder
    name = str(model)
    if path.exists():
        raise ModelNotFound(name, "this is a file; a model is a folder")
    folder = _from_hub(name)
    check_folder(folder)
    return folder


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    def download(weights: str) -> Path:
        patterns = [*_HUB_FILES, weights]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=_HUB_SKIPPED))

    try:
        folder = download("*.safetensors")
        if not any(folder.glob("*.safetensors")):
            folder = download("pytorch_model*.bin")
    except GatedRepoError as error:  # a kind of RepositoryNotFoundError
        raise ModelNotFound(
            name, "the Hub gives it only to users who accepted its terms"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            name, "there is no such folder, and no such model on the Hub"
        ) from error
    except LocalEntryNotFoundError as error:
        reason = "there is no such folder, it is not in the Hub's cache, and the Hub is not reached"
        raise ModelNotFound(name, reason) from error
    # The Hub's client passes on its HTTP library's errors.
    except Exception as error:
        raise ModelNotFound(name, f"the Hub's answer: {error}") from error
    return folder


def load_tokenizer(folder: str | Path) -> "PreTrainedTokenizerFast":
    """Load the tokenizer in ``folder``; a beginning-of-text token is the caller's affair.

    Raises:
        ModelUnreadable: it is broken, or has no fast version (the detokeniser needs one).
    """
    folder = Path(folder)
    try:
        tokenizer = _tokenizer_class(folder).from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # A damaged file can raise anything in transformers, and a bare Exception in tokenizers.
    except Exception as error:
        raise ModelUnreadable(str(folder), f"tokenizer: {_said(error)}") from error
    if not tokenizer.is_fast:
        raise ModelUnreadable(str(folder), "tokenizer: it has no fast version")
    return tokenizer  # type: ignore[no-any-return]


def _tokenizer_class(folder: Path) -> Any:
    # AutoTokenizer imports torch: 200 MB for a gateway that needs none. These names say
    # that tokenizer.json is all there is to the tokenizer.
    config = folder / "tokenizer_config.json"
    named = json.loads(config.read_bytes()).get("tokenizer_class") if config.is_file() else None
    if named in ("TokenizersBackend", "PreTrainedTokenizerFast"):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def load_model(
    folder: str | Path, dtype: "torch.dtype | str" = "auto", device: "torch.device | str" = "cpu"
) -> "PreTrainedModel":
    """Load the causal LM in ``folder``, in eval mode and without gradients.

    Args:
        folder: as ``resolve`` returns it.
        dtype: a torch dtype or its name; ``"auto"`` is the one the weights were saved in.
        device: where the weights go, straight from the files.

    Raises:
        ModelNotFound: a file is missing.
        ModelUnreadable: a file is damaged, weights are missing, the architecture is not
            supported, or memory ran out.
    """
    import torch
    from transformers import AutoModelForCausalLM

    info = model_info(folder)
    name = info.dtype if dtype == "auto" else str(dtype).removeprefix("torch.")
    torch_dtype = getattr(torch, name, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise ModelUnreadable(str(folder), f"there is no dtype {name!r}")
    # Without a device map the weights go to the CPU and need no accelerate.
    place: dict[str, Any] = {} if str(device) == "cpu" else {"device_map": {"": device}}
    auto: Any = AutoModelForCausalLM  # its stub knows nothing of output_loading_info
    try:
        model, report = auto.from_pretrained(
            folder,
            dtype=torch_dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **place,
        )
    # Configurations are free-form, so a bad one can raise anything in transformers.
    except Exception as error:
        raise ModelUnreadable(str(folder), _said(error)) from error
    # transformers only warns of these, and fills them with random numbers.
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelUnreadable(str(folder), f"the weights lack {missing[0]}{more}")
    model.requires_grad_(False)
    return model.eval()  # type: ignore[no-any-return]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

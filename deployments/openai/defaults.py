"""Sampling defaults that a model's authors recommend, in its generation_config.json."""

import json
from pathlib import Path
from typing import Any, Final

from deployments.openai.errors import BadRequest
from deployments.openai.models import GenerationRequest, validated
from engine.model_info import ModelError

_NAMES: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Return the fields of a request that the model's authors give a default.

    Args:
        folder: of the model; without the file there are no such fields.

    Raises:
        ModelError: the file cannot be read, or gives a value that no request may have.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        told = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(str(folder), f"{path.name}: {error}") from None
    if not isinstance(told, dict):
        raise ModelError(str(folder), f"{path.name} is not a JSON object")
    defaults = {name: told[name] for name in _NAMES if told.get(name) is not None}
    try:
        validated(GenerationRequest, defaults)
    except BadRequest as error:
        raise ModelError(str(folder), f"{path.name}: {error}") from None
    return defaults

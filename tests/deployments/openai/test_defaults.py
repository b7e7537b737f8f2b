"""Defaults that come from a model's generation_config.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.openai.defaults import sampling_defaults
from deployments.openai.document import document
from engine.model_info import ModelError
from tests.deployments.openai.wire import SERVED, chat_call, completion_call


def write(folder: Path, value: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(value))
    return folder


def test_only_what_a_request_may_say_is_taken(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}
    told = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "eos_token_id": [2]}
    assert sampling_defaults(write(tmp_path, told)) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("wrong", [{"temperature": 3}, {"top_k": "x"}, [], "text"])
def test_a_wrong_file_is_named(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        sampling_defaults(write(tmp_path, wrong))
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        sampling_defaults(tmp_path)


@pytest.mark.parametrize("prepare", [chat_call, completion_call])
def test_what_the_client_says_wins(prepare: Any) -> None:
    served = replace(SERVED, defaults={"temperature": 0.6, "top_p": 0.5})
    params = prepare({"top_p": 0.9, "temperature": None}, served=served).jobs[0].params
    assert (params.temperature, params.top_p, params.min_p) == (0.6, 0.9, 0.0)


def test_the_document_tells_them() -> None:
    schemas = document(replace(SERVED, defaults={"top_k": 7}), "1", False)["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["top_k"]["default"] == 7

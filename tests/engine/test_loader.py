import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import loader
from engine.loader import (
    ModelError,
    ModelNotFound,
    ModelUnreadable,
    load_model,
    load_tokenizer,
    resolve,
)

# The control tokens of SmolLM2, ids 0 to 16, as the model's own file lists them.
CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<jupyter_script>",
    "<empty_output>",
)


def test_importing_the_loader_imports_no_torch() -> None:
    # The gateway and the command line import it: torch would cost them seconds.
    code = "import sys, engine.loader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_local_folder_is_resolved_to_itself(tiny_model_dir: Path) -> None:
    assert resolve(str(tiny_model_dir)) == tiny_model_dir.resolve()


def test_a_path_that_is_not_there_is_not_taken_for_a_hub_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such folder"):
        resolve(str(tmp_path / "nothing"))
    with pytest.raises(ModelNotFound, match="no such folder"):
        resolve("./nothing")


def test_a_file_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve(tiny_model_dir / "config.json")


def test_offline_a_hub_name_fails_at_once_with_one_line() -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("nobody/no-such-model")
    assert caught.value.model == "nobody/no-such-model"
    assert "Hub" in caught.value.reason
    assert "\n" not in str(caught.value)


def test_a_hub_name_downloads_what_is_needed_and_no_more(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot_download(name: str, **patterns: Any) -> str:
        asked.append({"name": name, **patterns})
        return str(tiny_model_dir)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve("someone/a-model") == tiny_model_dir
    (request,) = asked
    assert request["name"] == "someone/a-model"
    assert "*.safetensors" in request["allow_patterns"]
    # The same weights in a second format would double the download.
    assert not any(".bin" in pattern for pattern in request["allow_patterns"])


def test_a_hub_failure_of_any_kind_is_a_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **patterns: Any) -> str:
        raise RuntimeError("429 too many\nrequests")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModelNotFound, match="429 too many requests"):
        resolve("someone/a-model")


def test_a_tokenizer_without_a_fast_version_is_refused(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        is_fast = False

        @classmethod
        def from_pretrained(cls, *args: Any, **options: Any) -> "Slow":
            return cls()

    monkeypatch.setattr(loader, "_tokenizer_class", lambda folder: Slow)
    with pytest.raises(ModelUnreadable, match="fast"):
        load_tokenizer(tiny_model_dir)


def test_a_damaged_tokenizer_is_a_clear_line(tiny_copy: Path) -> None:
    (tiny_copy / "tokenizer.json").write_text('{"model": {"type": "None of these"}}')
    with pytest.raises(ModelUnreadable, match="tokenizer"):
        load_tokenizer(tiny_copy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.float32, torch.bfloat16])
def test_the_model_comes_in_the_dtype_asked_for(
    tiny_model_dir: Path, dtype: str | torch.dtype
) -> None:
    model = load_model(tiny_model_dir, dtype)
    assert str(model.dtype).endswith(str(dtype).removeprefix("torch."))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_auto_is_the_dtype_of_the_files(tiny_model_dir: Path) -> None:
    assert load_model(tiny_model_dir, "auto").dtype == torch.float32


def test_an_unknown_dtype_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(ModelUnreadable, match="float7"):
        load_model(tiny_model_dir, "float7")
    with pytest.raises(ModelUnreadable, match="nn"):
        load_model(tiny_model_dir, "nn")


def test_missing_weights_are_not_filled_with_random_numbers(tiny_copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny_copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tiny_copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnreadable, match=r"lack .*up_proj"):
        load_model(tiny_copy)


def test_weights_of_another_shape_are_refused(tiny_copy: Path) -> None:
    config = tiny_copy / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(ModelUnreadable):
        load_model(tiny_copy)


def test_an_architecture_nobody_knows_is_refused(tiny_copy: Path) -> None:
    config = tiny_copy / "config.json"
    text = config.read_text().replace('"model_type": "llama"', '"model_type": "nonesuch"')
    config.write_text(text)
    with pytest.raises(ModelUnreadable) as caught:
        load_model(tiny_copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_code_that_comes_with_a_model_is_never_run(
    tiny_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[Path], object]
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    ran = tmp_path / "ran"
    (tiny_copy / "own.py").write_text(f"open({str(ran)!r}, 'w')")
    config = json.loads((tiny_copy / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (tiny_copy / "config.json").write_text(json.dumps(config))
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (tiny_copy / "tokenizer_config.json").write_text(json.dumps(own))
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    with pytest.raises(ModelUnreadable):
        load(tiny_copy)
    assert not ran.exists()


@pytest.mark.parametrize("kind", [ModelError, ModelNotFound, ModelUnreadable])
def test_errors_travel_between_processes(kind: type[ModelError]) -> None:
    error = pickle.loads(pickle.dumps(kind("a model", "a reason")))
    assert type(error) is kind
    assert (error.model, error.reason) == ("a model", "a reason")
    assert str(error) == "model 'a model': a reason"


def test_each_control_token_is_one_id_and_never_text(demo_model_dir: Path) -> None:
    tokenizer = load_tokenizer(demo_model_dir)
    for token, text in enumerate(CONTROL_TOKENS):
        assert tokenizer.encode(text) == [token]
        assert tokenizer.decode([28120, token], skip_special_tokens=True) == "hello"


def test_digits_are_split_off_before_the_spaces_before_them(demo_model_dir: Path) -> None:
    # As the model was trained; without it the second space joins the digit's side.
    tokenizer = load_tokenizer(demo_model_dir)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]


def test_the_tokenizer_knows_the_context_length(demo_model_dir: Path) -> None:
    assert load_tokenizer(demo_model_dir).model_max_length == 8192


def test_encoding_adds_no_token_of_its_own(demo_model_dir: Path) -> None:
    tokenizer = load_tokenizer(demo_model_dir)
    assert tokenizer.decode(tokenizer.encode("The tide.")) == "The tide."


def test_the_chat_template_opens_each_turn_once(demo_model_dir: Path) -> None:
    tokenizer = load_tokenizer(demo_model_dir)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ids[0] == CONTROL_TOKENS.index("<|im_start|>")
    # The default system turn, the user's and the one to write.
    assert ids.count(CONTROL_TOKENS.index("<|im_start|>")) == 3


def test_the_demo_model_answers_paris(demo_model_dir: Path) -> None:
    tokenizer = load_tokenizer(demo_model_dir)
    model: Any = load_model(demo_model_dir, "bfloat16")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
    )
    answer = output[0, len(prompt) :].tolist()
    # It ends by itself, so the end token is known to generation_config.
    assert answer[-1] == CONTROL_TOKENS.index("<|im_end|>")
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."


def test_the_demo_model_is_the_default(demo_model_dir: Path) -> None:
    started = time.monotonic()
    assert resolve(None) == resolve(loader.DEMO_MODEL) == demo_model_dir
    assert demo_model_dir.name == loader.DEMO_NAME
    assert time.monotonic() - started < 5, "a model in the cache is not converted again"

"""What all tests share: the demo model, converted once a machine, and a tiny random model."""

import os
import shutil
from pathlib import Path

# Before any import of the libraries that read them.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Triton's kernels, its own among them, become the interpreter's when they are defined.
os.environ["TRITON_INTERPRET"] = "1"
# Threads that wait for each other by spinning stall when a machine has other work to do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers would get as little of a machine as the tests that run beside theirs.
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest
from hypothesis import settings

from engine.loader import resolve

# How long an example takes says more about what else the machine does than about it.
settings.register_profile("any_speed", deadline=None)
settings.load_profile("any_speed")


ENGINE = Path(__file__).parent / "engine"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the engine's tests, half of all that start no server: they run in a process apart."""
    for item in items:
        if ENGINE in item.path.parents:
            item.add_marker("engine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of which no test is wanted: imports take long."""
    if collection_path.suffix != ".py":
        return None
    wanted = config.option.markexpr
    of_engine = ENGINE in collection_path.parents
    if wanted.startswith("cluster"):
        unwanted = "mark.cluster" not in collection_path.read_text()
    elif wanted.startswith("engine"):
        unwanted = not of_engine
    else:
        unwanted = of_engine and wanted.endswith("not engine")
    return True if unwanted else None


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The demo model's folder; fetched and converted if the cache lacks it."""
    return resolve("demo")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights and a byte-level tokenizer; do not write to it."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-llama")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that the test may damage."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "tiny"))

"""engine.native.model: what transformers computes, or a refusal."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    PretrainedConfig,
    PreTrainedModel,
)

from engine.native.library import Element, NativeUnavailable
from engine.native.model import NativeModel
from tests.engine.native.small import KINDS, SIZES, library, logits, native, random_model

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 97, 9, 3, 2, 3, 8, 4, 6]


def reference(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(torch.tensor([TOKENS])).logits[0].float()
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_gives_transformers_own_logits(kind: str) -> None:
    """A bias left out, a norm forgotten, angles of another kind: all give fluent nonsense."""
    model = random_model(KINDS[kind])
    (found,) = logits(native(model), [(0, 0, TOKENS)])
    torch.testing.assert_close(found, reference(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("matrix_unit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_the_kernels_are_closer_to_the_truth_than_transformers(
    kind: str, matrix_unit: bool
) -> None:
    """Between linears they keep float32, where transformers rounds after each operation."""
    model = random_model(KINDS[kind], torch.bfloat16)
    (found,) = logits(native(model, matrix_unit=matrix_unit), [(0, 0, TOKENS)])
    rounded = reference(model)
    truth = reference(model.float())
    assert (found - truth).square().mean() < (rounded - truth).square().mean()


def test_replicas_with_and_without_a_matrix_unit_are_told_apart() -> None:
    """A stream begun by one of them and carried on by the other would be no answer's."""
    if not library().matrix_unit:
        pytest.skip("there is no matrix unit")
    model = random_model(KINDS["llama"], torch.bfloat16)
    vectors, matrix = (native(model, matrix_unit=unit)._model for unit in (False, True))
    assert (vectors.element, matrix.element) == (Element.BFLOAT16, Element.MATRIX_BFLOAT16)
    assert vectors.digest != matrix.digest


def test_where_the_system_keeps_the_matrix_unit_to_itself_vectors_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first product would end the process."""
    monkeypatch.setattr(library(), "matrix_unit", False)
    model = random_model(KINDS["llama"], torch.bfloat16)
    assert native(model)._model.element is Element.BFLOAT16


REFUSED = {
    "gemma2": (Gemma2Config(**SIZES), "kind 'gemma2'"),
    "granite": (GraniteConfig(**SIZES), "kind 'granite'"),
    "olmo2": (Olmo2Config(**SIZES), "kind 'olmo2'"),
    "gelu": (LlamaConfig(**SIZES, hidden_act="gelu"), "not gated by SiLU"),
    "odd": (LlamaConfig(**{**SIZES, "intermediate_size": 85}), "intermediate_size is 85"),
    "head": (LlamaConfig(**{**SIZES, "head_dim": 24}), "a head has 24 elements"),
    "partial": (
        LlamaConfig(
            **SIZES,
            rope_parameters={
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        ),
        "8 of a head's 16 elements are rotated",
    ),
    "rope": (
        LlamaConfig(
            **SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        ),
        "rotary embedding is of kind 'dynamic'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_another_kind_is_refused_and_named(what: str) -> None:
    """Computing it all the same would answer wrongly, without an error."""
    config, reason = REFUSED[what]
    model = random_model(config)
    with pytest.raises(NativeUnavailable, match=reason):
        NativeModel(library(), model, 16, 1)


def test_blocks_that_are_no_whole_panels_are_refused() -> None:
    with pytest.raises(NativeUnavailable, match="block_tokens is 24"):
        NativeModel(library(), random_model(KINDS["llama"]), 24, 1)


def test_a_half_precision_model_is_refused() -> None:
    config: PretrainedConfig = KINDS["llama"]
    with pytest.raises(NativeUnavailable, match="float16"):
        NativeModel(library(), random_model(config, torch.float16), 16, 1)

"""engine.activation: an element's bits must not depend on where it lies."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from engine.activation import InvariantActivation, make_activations_invariant

NAMES = ["silu", "gelu", "gelu_pytorch_tanh", "relu"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_alone_equals_the_row_in_any_batch(name: str, dtype: torch.dtype) -> None:
    """What whole vectors leave over is rounded otherwise, and earlier rows decide what that is."""
    torch.manual_seed(0)
    activation = InvariantActivation(ACT2FN[name])
    x = torch.randn(1200, 48).to(dtype)
    alone = torch.cat([activation(x[i : i + 1]) for i in range(1200)])
    for rows in (1, 2, 3, 5, 21, 341, 342, 683, 1199, 1200):
        assert torch.equal(activation(x[:rows]), alone[:rows]), f"{rows} rows"


def test_it_computes_what_the_function_computes() -> None:
    x = torch.linspace(-9, 9, 70).view(2, 5, 7)
    torch.testing.assert_close(InvariantActivation(nn.SiLU())(x), nn.functional.silu(x))


def test_activations_of_a_model_are_wrapped_wherever_they_are_and_nothing_else_is() -> None:
    """A softmax given in parts is none; one object may serve many layers."""
    shared = nn.SiLU()
    model = nn.Sequential(
        nn.Linear(3, 4), shared, nn.Sequential(ACT2FN["gelu_new"], shared), nn.Softmax(dim=-1)
    )
    make_activations_invariant(model)
    kinds = [type(m) for m in model]
    assert kinds == [nn.Linear, InvariantActivation, nn.Sequential, nn.Softmax]
    assert [type(m) for m in model[2]] == [InvariantActivation] * 2

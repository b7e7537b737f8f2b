"""engine.self_check: a machine whose bits depend on company does not pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import engine.attention.paged
from engine.batch import Batch
from engine.kv_pool import KVShape
from engine.runner import ModelRunner
from engine.self_check import Variance, check_same_bits
from tests.engine.tiny import VOCAB, tiny_runner

CPU = torch.device("cpu")
SHAPE = KVShape(2, 2, 8, torch.float32)
Attend = Callable[..., Tensor]


def check() -> None:
    model = tiny_runner(1, 16, ModelRunner)._model
    check_same_bits(lambda pool: ModelRunner(model, pool), SHAPE, CPU, VOCAB)


def test_this_machine_passes() -> None:
    check()


@pytest.mark.parametrize("most", [2, 7, 63])
def test_attention_that_depends_on_how_many_decodes_share_a_call_is_seen(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Kernels split keys when too few sequences would leave threads idle."""
    attend: Attend = engine.attention.paged._attend

    def other(q: Tensor, *rest: object) -> Tensor:
        out = attend(q, *rest)
        return out if len(q) <= most else out * (1 + 2**-20)

    # The probe that sizes decodes would see it too, but tries fewer lengths than a batch has.
    tile = engine.attention.paged.find_decode_tile(2, 2, 8, CPU)
    monkeypatch.setattr(engine.attention.paged, "find_decode_tile", lambda *shape: tile)
    monkeypatch.setattr(engine.attention.paged, "_attend", other)
    with pytest.raises(Variance, match="a decode beside"):
        check()


class Seen(ModelRunner):
    """Writes down how far its sequences go."""

    longest = 0

    def hidden(self, batch: Batch) -> Tensor:
        Seen.longest = max(Seen.longest, int(batch.positions().max()) + 1)
        return super().hidden(batch)


@pytest.mark.parametrize("longest", [2, 3, 12, 13, 70, 71, 72])
def test_no_probe_is_longer_than_what_is_served(
    monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    """A runner has room, and angles, for the longest sequence that is served and no more."""
    model = tiny_runner(1, 16, ModelRunner)._model
    monkeypatch.setattr(Seen, "longest", 0)
    check_same_bits(lambda pool: Seen(model, pool), SHAPE, CPU, VOCAB, 4, longest)
    assert Seen.longest == min(longest, 71)

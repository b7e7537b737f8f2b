"""An engine over the Triton kernels: steps launched ahead of the tokens before them."""

import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from engine.batch import Batch
from engine.blocks import FreeListBlocks
from engine.cuda import gemm
from engine.cuda.sampling import CudaSampler
from engine.engine import Engine
from engine.prefill import Chunked
from engine.request import SamplingParams
from engine.scheduler import Scheduler, SchedulerConfig
from engine.submission import Submission
from engine.text import TokenBytes
from tests.engine.cuda.test_runner import VOCAB, runner_of, tiny
from tests.engine.rig import Inbox
from tests.engine.tiny import word_tokenizer

pytestmark = pytest.mark.usefixtures("matrix_units")


@pytest.fixture(autouse=True)
def _few_tries() -> Iterator[None]:
    with (
        patch.object(gemm, "usable_tiles", lambda n, k, like: gemm._tiles(n, like.dtype)),
        patch.object(gemm, "_SHORTEST_SEGMENT", 32),
    ):
        yield


def answers(overlap: bool, graphs: int) -> tuple[list[tuple[list[int], object]], list[bool]]:
    """Of three requests, one of which stops early; and which steps were launched ahead."""
    runner, inbox = runner_of(tiny(LlamaForCausalLM, LlamaConfig), graphs), Inbox()
    blocks = FreeListBlocks(4, range(8))
    config = SchedulerConfig(max_seqs=4, max_batch_tokens=16, max_model_len=16)
    sampler = CudaSampler(VOCAB, "cpu")
    engine = Engine(
        Scheduler(config, blocks, Chunked(4)),
        runner,
        sampler,
        TokenBytes(word_tokenizer()),
        (),
        inbox,
        random.Random(0),
        debug=True,
        overlap=overlap,
    )
    ahead: list[bool] = []
    hidden = runner.hidden

    def record(batch: Batch) -> object:
        ahead.append(batch.sources is not None)
        return hidden(batch)

    with patch.object(runner, "hidden", record):
        for i, stop in enumerate([(), tuple(range(0, VOCAB, 3)), ()]):
            params = SamplingParams(
                temperature=float(i), seed=i, top_p=0.9, max_tokens=5, stop_token_ids=stop
            )
            engine.submit(Submission(str(i), (i + 3, 4, 5, 6, 7)[: 3 + i], params))
        while engine.keys() or engine._loop.under_way:
            engine.step()
    engine.stop()
    assert blocks.free_blocks == blocks.total_blocks
    return [(inbox.tokens(str(i)), inbox.of(str(i))[-1].finish) for i in range(3)], ahead


@pytest.mark.parametrize("graphs", [0, 4])
def test_answers_are_those_of_the_plain_loop(graphs: int) -> None:
    plain, never = answers(False, graphs)
    early, ahead = answers(True, graphs)
    assert early == plain
    assert len(plain[0][0]) == 5
    assert not any(never)
    assert ahead.count(True) >= 4

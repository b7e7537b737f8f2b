"""Swapping in the engine: nobody's tokens, text or log-probabilities change."""

import pytest

from tests.engine.rig import Bench

PARAMS = {"max_tokens": 20, "logprobs": 2, "prompt_logprobs": 1, "temperature": 1.0}


def crowd(bench: Bench) -> list[str]:
    """Four requests that a pool of 14 blocks cannot hold together to their ends."""
    keys = [f"r{i}" for i in range(4)]
    for i, key in enumerate(keys):
        bench.submit(key, tuple(range(3, 13 + i)), seed=i, **PARAMS)
    return keys


@pytest.mark.parametrize("chunk", [3, 16])
def test_answers_are_those_of_a_roomy_pool(chunk: int) -> None:
    """Fault: copies come after the step that needs them, or a prompt is scored twice."""
    roomy, tight = Bench(num_blocks=64), Bench(num_blocks=14, slots=30, debug=True, chunk=chunk)
    for bench in (roomy, tight):
        crowd(bench)
        bench.run()
    stats = tight.engine.stats()
    assert stats.preemptions > 0
    assert stats.restored_tokens > 0
    assert stats.recomputed_tokens == 0
    for key in [f"r{i}" for i in range(4)]:
        assert tight.inbox.tokens(key) == roomy.inbox.tokens(key)
        assert tight.inbox.text(key) == roomy.inbox.text(key)
        assert tight.inbox.logprobs(key) == roomy.inbox.logprobs(key)
        assert tight.inbox.prompt_logprobs(key) == roomy.inbox.prompt_logprobs(key)


def test_aborts_leave_no_slot_behind() -> None:
    """Fault: who left while it waited holds host memory for ever."""
    bench = Bench(num_blocks=14, slots=30, debug=True)
    keys = crowd(bench)
    while not bench.engine.stats().preemptions:
        bench.engine.step()
    swap = bench.engine._scheduler.swap
    assert swap is not None
    assert swap.free_slots < swap.total_slots
    for key in keys[1:]:
        bench.engine.abort(key)
    assert swap.free_slots == swap.total_slots
    bench.run()
    assert len(bench.inbox.tokens(keys[0])) == 20
    assert bench.blocks.free_blocks == bench.blocks.total_blocks

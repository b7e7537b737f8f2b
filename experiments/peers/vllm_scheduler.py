"""vLLM's scheduler alone, on the outputs of a model that is not there."""

import gc
import statistics
import time

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from experiments.peers.answering import Settings

_PROMPT, _WARM_UP = 128, 20


def step_us(settings: Settings, running: int, steps: int) -> float:
    """µs of CPU of ``schedule`` and ``update_from_output``, with so many decodes: a median.

    The load is that of our own scheduler's benchmark, and what a runner would give back is
    made outside the time, as there.
    """
    scheduler = _scheduler(settings, running, _PROMPT + steps + 100)
    params = SamplingParams(temperature=0.0, max_tokens=steps + 90, ignore_eos=True)
    for i in range(running):
        scheduler.add_request(Request(f"r{i}", [1] * _PROMPT, params, None))
    # As vLLM's engine does once it has started, so that collections pass over its own objects.
    gc.collect()
    gc.freeze()
    took: list[float] = []
    while len(took) < steps + _WARM_UP:
        begin = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time() - begin
        output = _output(plan)
        begin = time.thread_time()
        scheduler.update_from_output(plan, output)
        taken = time.thread_time() - begin
        if plan.total_num_scheduled_tokens == len(plan.num_scheduled_tokens) == running:
            took.append(planned + taken)
    return statistics.median(took[_WARM_UP:]) * 1e6


def _scheduler(settings: Settings, running: int, tokens: int) -> Scheduler:
    """A scheduler with room for so many requests of so many tokens."""
    config: VllmConfig = EngineArgs(
        model=settings.model,
        dtype=settings.dtype,
        max_num_seqs=running,
        max_num_batched_tokens=8192,
        max_model_len=settings.max_model_len,
        enable_prefix_caching=False,
    ).create_engine_config()
    block = config.cache_config.block_size
    blocks = running * (tokens // block + 1) + 1
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block,
        log_stats=False,
    )


def _output(plan: SchedulerOutput) -> ModelRunnerOutput:
    """One token for each request, as a model's runner would give it back."""
    ids = list(plan.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={id: i for i, id in enumerate(ids)},
        sampled_token_ids=[[7] for _ in ids],
    )

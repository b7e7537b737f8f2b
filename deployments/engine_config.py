"""The engine's configuration, from the settings of a deployment."""

from deployments.config import ServeConfig
from engine.engine_config import EngineConfig
from router.prefix_depths import DEPTHS


def engine_config(config: ServeConfig) -> EngineConfig:
    """Return the part of the settings that shapes an engine."""
    return EngineConfig(
        model=config.model,
        dtype=config.dtype,
        device=config.device,
        num_blocks=config.num_blocks,
        block_tokens=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_batch_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        max_waiting=config.max_waiting,
        policy=config.scheduling_policy,
        aging=config.aging_ticks,
        admission_preemption=config.admission_preemption,
        max_admission_preemptions=config.max_admission_preemptions,
        max_passes=config.max_passes,
        swap_gib=config.swap_gib,
        prefill_chunk=config.prefill_chunk,
        target_tpot_ms=config.target_tpot_ms,
        prefix_cache=config.prefix_cache,
        told_depths=frozenset(DEPTHS),  # those that tickets ask for
        overlap=config.overlap,
        threads=config.threads_per_replica,
        kernels=config.kernels,
        allow_variance=config.allow_variance,
    )

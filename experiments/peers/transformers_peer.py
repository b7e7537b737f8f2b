"""transformers' own continuous batching as a peer."""

from importlib.metadata import version

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from experiments.peers.answering import Settings, answer

_PAGE, _POLL_S = 256, 1.0


class ContinuousBatching:
    """A ``ContinuousBatchingManager`` that stays between calls.

    Its fast path for decodes and its CUDA graphs exist on GPUs only. Here every step goes
    through one attention over the keys of all sequences with a mask between them.
    """

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings.threads)
        model = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=getattr(torch, settings.dtype), attn_implementation="sdpa"
        )
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        batching = ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=settings.kv_tokens // _PAGE,
            max_batch_tokens=settings.max_batch_tokens,
            max_requests_per_batch=settings.max_seqs,
            allow_block_sharing=False,
            auto_switch_to_flash=False,
        )
        with torch.inference_mode():
            self._manager = model.init_continuous_batching(generation, batching)
            self._manager.start()
        self.versions = {name: version(name) for name in ("transformers", "torch")}

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """See :class:`experiments.peers.answering.Peer`.

        Raises:
            RuntimeError: the manager's thread died, or refused a prompt.
        """
        ids = self._manager.add_requests(prompts, max_new_tokens=tokens)
        done: dict[str, list[int]] = {}
        while len(done) < len(ids):
            result = self._manager.get_result(timeout=_POLL_S)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("the manager's thread died")
            elif result.error is not None:
                raise RuntimeError(result.error)
            elif result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
        return [done[id] for id in ids]

    def scheduler_step_us(self, running: int, steps: int) -> None:
        """Not measured: its scheduler touches the cache's tensors."""

    def close(self) -> None:
        """See :class:`experiments.peers.answering.Peer`."""
        self._manager.stop(block=True)


if __name__ == "__main__":
    answer(ContinuousBatching)

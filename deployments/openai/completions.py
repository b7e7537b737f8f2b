"""POST /v1/completions: one prompt or several in, one text out for each."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from deployments.openai.body import read_object
from deployments.openai.call import Call, Choice, Job, Shape, new_id
from deployments.openai.forms import Prompt
from deployments.openai.jobs import jobs_of, require_choices, require_tellable
from deployments.openai.length import require_possible
from deployments.openai.logprobs import CompletionLedger
from deployments.openai.models import CompletionRequest, validated
from deployments.openai.served import Served
from deployments.openai.structured import form_field, grammar_of
from deployments.openai.terms import Terms
from deployments.openai.tokens import TokenNames
from deployments.openai.unbuilt import COMPLETIONS, refuse_unbuilt

DEFAULT_MAX_TOKENS = 16


class TextTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


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
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish.value,
        }

    def ledger(self, names: TokenNames, job: Job) -> CompletionLedger:
        return CompletionLedger(names, job.prompt, job.echo or "")


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
    served.require_name(fields)
    refuse_unbuilt(fields, COMPLETIONS)
    request = validated(CompletionRequest, served.filled(fields))
    terms = Terms.of(request, headers, served)
    grammar = grammar_of(fields)
    require_choices(len(request.prompt), request, served)
    for prompt in request.prompt:
        if isinstance(prompt, str):
            require_possible(prompt, served, "prompt")
    prompts = [
        tuple(tokenizer.encode(prompt, add_special_tokens=True))
        if isinstance(prompt, str)
        else prompt
        for prompt in request.prompt
    ]
    require_tellable(prompts, request)
    echoes = [_text(prompt, tokenizer, served) for prompt in request.prompt if request.echo]
    return CompletionCall(
        id=new_id("cmpl", rng),
        created=int(now),
        model=served.name,
        terms=terms,
        jobs=tuple(
            jobs_of(request, prompts, served, DEFAULT_MAX_TOKENS, "prompt", rng, echoes, grammar)
        ),
        each=request.n,
        form=form_field(fields),
    )


def _text(prompt: Prompt, tokenizer: TextTokenizer, served: Served) -> str:
    if isinstance(prompt, str):
        return prompt
    served.require_ids(prompt, "prompt")
    return tokenizer.decode(prompt, skip_special_tokens=True)

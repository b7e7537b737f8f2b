"""From a request's prompts to what the engine is to generate: lengths, seeds, vocabularies."""

import random
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

from deployments.openai.call import Job
from deployments.openai.errors import BadRequest, invalid, too_long
from deployments.openai.models import SEED_BITS, GenerationRequest
from deployments.openai.served import Served
from engine.request import InvalidParam, SamplingParams

MAX_PROMPT_LOGPROBS = 200_000
"""Log-probabilities of prompts in one answer; to spell so many takes some 200 ms."""


def jobs_of(
    request: GenerationRequest,
    prompts: Sequence[tuple[int, ...]],
    served: Served,
    default_tokens: int | None,
    field: str,
    rng: random.Random,
    echoes: Sequence[str] = (),
    grammar: str | None = None,
) -> Iterator[Job]:
    """Pair every prompt with its sampling parameters, ``n`` times.

    The first of a prompt's choices is the one that tells its log-probabilities.

    Args:
        request: the validated body.
        prompts: token ids.
        served: bounds them.
        default_tokens: to generate when the client does not say; None is all there is
            room for.
        field: the name of the prompt's field, for errors.
        rng: draws a seed for each job when the client gave none; drawn once, here, so
            that a job that is computed again elsewhere repeats itself.
        echoes: the text of each prompt, if it is to be echoed.
        grammar: what the answers must match.

    Raises:
        BadRequest: a prompt is empty or too long, or an id is out of the vocabulary.
    """
    served.require_ids(request.stop_token_ids, "stop_token_ids")
    served.require_ids([token for token, _ in request.logit_bias], "logit_bias")
    shared: SamplingParams | None = None
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise BadRequest(f"'{field}' must not be empty.", field)
        served.require_ids(prompt, field)
        tokens = _budget(len(prompt), request, default_tokens, served, field)
        if request.min_tokens > tokens:
            raise BadRequest(
                f"'min_tokens' must be at most the tokens to generate, {tokens}, "
                f"not {request.min_tokens}.",
                "min_tokens",
            )
        if shared is None:
            shared = _sampling(request, max(tokens, 1), grammar)
        for choice in range(request.n):
            params = _varied(
                shared,
                max_tokens=max(tokens, 1),
                seed=_seed(request.seed, choice, rng),
                prompt_logprobs=None if choice else shared.prompt_logprobs,
            )
            yield Job(prompt, params, echoes[index] if echoes else None, mute=tokens == 0)


def require_choices(prompts: int, request: GenerationRequest, served: Served) -> None:
    """Check that a request does not ask for more choices than it may.

    Raises:
        BadRequest: it does.
    """
    if prompts > served.max_prompts:
        raise BadRequest(
            f"'prompt' must hold at most {served.max_prompts} prompts, not {prompts}.", "prompt"
        )
    if prompts * request.n > served.max_prompts:
        raise BadRequest(
            f"'n' must be at most {served.max_prompts // prompts}, not {request.n}: a request "
            f"has at most {served.max_prompts} choices.",
            "n",
        )


def require_tellable(prompts: Sequence[tuple[int, ...]], request: GenerationRequest) -> None:
    """Check that a request does not ask for more of its prompts' log-probabilities than it may.

    Raises:
        BadRequest: it does.
    """
    told = request.told_logprobs
    if told is None or not request.echoes:
        return
    entries = sum(map(len, prompts)) * request.n * (told + 1)
    if entries > MAX_PROMPT_LOGPROBS:
        raise BadRequest(
            f"'logprobs': {told} with 'echo' would tell {entries} log-probabilities of prompts "
            f"(their tokens, times 'n', times {told} + 1); at most {MAX_PROMPT_LOGPROBS} are told.",
            "logprobs",
        )


def _sampling(request: GenerationRequest, tokens: int, grammar: str | None) -> SamplingParams:
    try:
        return request.sampling(tokens, grammar)
    except InvalidParam as error:
        raise invalid(error) from None


def _varied(params: SamplingParams, **changes: Any) -> SamplingParams:
    """Return a copy with other values, which the caller has checked.

    Unlike ``dataclasses.replace`` it neither checks nor copies the lists of each choice anew.
    """
    varied = copy(params)
    for name, value in changes.items():
        object.__setattr__(varied, name, value)
    return varied


def choice_seed(given: int, choice: int) -> int:
    """Return the seed of one of a prompt's choices; the first has the one that was given."""
    # A string seeds by its SHA-512, the same in every process and version.
    return random.Random(f"{given}/{choice}").getrandbits(SEED_BITS) if choice else given


def _seed(given: int | None, choice: int, rng: random.Random) -> int:
    return rng.getrandbits(SEED_BITS) if given is None else choice_seed(given, choice)


def _budget(
    tokens: int, request: GenerationRequest, default: int | None, served: Served, field: str
) -> int:
    room, asked = served.max_model_len - tokens, request.asked_tokens
    # Not clamped: whoever names a length, with ignore_eos for instance, counts on it.
    if room < 1 or (asked is not None and asked > room):
        raise too_long(tokens, served.max_model_len, asked, field, request.asked_by)
    if asked is not None:
        return asked
    return room if default is None else min(default, room)

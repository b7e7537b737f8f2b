"""The forms in which clients spell a field, each brought to one."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from deployments.validation import kind_of, show
from engine.request import is_int, is_number

MAX_STOPS = 4
MAX_STOP_CHARS = 1_000
MAX_STOP_IDS = 1_024
MAX_BIASES = 1_024
MAX_BIAS = 100
MAX_LOGPROBS = 20

# As JSON writes integers, so that no two keys mean the same token.
_ID = re.compile(r"0|[1-9][0-9]{0,18}")

Prompt = str | tuple[int, ...]

_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]

# What clients may write, for the OpenAPI document.
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopInput = _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)]
PromptInput = (
    _Text
    | Annotated[list[_Text], Field(min_length=1)]
    | _Ids
    | Annotated[list[_Ids], Field(min_length=1)]
)
BiasInput = Annotated[
    dict[
        Annotated[str, Field(pattern="^(0|[1-9][0-9]*)$")],
        Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)],
    ],
    Field(max_length=MAX_BIASES),
]
LogprobsInput = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | Literal[False] | None


def stops(value: object) -> tuple[str, ...]:
    """Bring ``stop`` to a tuple of texts.

    Raises:
        ValueError: it is none, an empty or too long one, or too many.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"must be a string or a list of strings, not {_shape(value)}")
    if len(texts) > MAX_STOPS:
        raise ValueError(f"must have at most {MAX_STOPS} strings, not {len(texts)}")
    if not all(texts):
        raise ValueError("must not hold an empty string")
    longest = max(map(len, texts), default=0)
    if longest > MAX_STOP_CHARS:
        limit = f"at most {MAX_STOP_CHARS} characters"
        raise ValueError(f"must have strings of {limit}, not one of {longest}")
    return tuple(texts)


def stop_ids(ids: list[int]) -> list[int]:
    """Return token ids without repetitions.

    Raises:
        ValueError: there are too many.
    """
    known = list(dict.fromkeys(ids))
    if len(known) > MAX_STOP_IDS:
        raise ValueError(f"must have at most {MAX_STOP_IDS} token ids, not {len(known)}")
    return known


def prompts(value: object) -> tuple[Prompt, ...]:
    """Bring the four forms to one: a tuple with a text or a tuple of ids for each prompt.

    Raises:
        ValueError: it is none of the four, or a prompt is empty.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"must be a string or a list, not {kind_of(value)}")
    found: tuple[Prompt, ...]
    if all(is_int(item) for item in value):
        found = (tuple(value),)
    elif all(isinstance(item, str) for item in value):
        found = tuple(value)
    elif all(isinstance(item, list) and all(is_int(i) for i in item) for item in value):
        found = tuple(tuple(item) for item in value)
    else:
        raise ValueError(
            "must be a string, a list of strings, a list of token ids, or a list of such lists"
        )
    if not all(found):
        raise ValueError("must not be empty")
    return found


def biases(value: object) -> tuple[tuple[int, float], ...]:
    """Bring ``logit_bias`` to pairs of a token and what is added to its logit.

    Raises:
        ValueError: a key is no token id, a value is out of range, or there are too many.
    """
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {kind_of(value)}")
    if len(value) > MAX_BIASES:
        raise ValueError(f"must have at most {MAX_BIASES} entries, not {len(value)}")
    for key, bias in value.items():
        if not isinstance(key, str) or not _ID.fullmatch(key):
            raise ValueError(f"must have token ids as its keys, not {show(key)}")
        if not is_number(bias, -MAX_BIAS, MAX_BIAS):
            raise ValueError(
                f"must have numbers from {-MAX_BIAS} to {MAX_BIAS} as its values, not {show(bias)}"
            )
    return tuple((int(key), float(bias)) for key, bias in value.items())


def logprobs(value: object) -> int | None:
    """Bring the ``logprobs`` of completions to a number; false asks for nothing.

    Raises:
        ValueError: it is no number, or out of range.
    """
    if value is False or value is None:
        return None
    number: Any = value
    if not is_int(value, 0) or number > MAX_LOGPROBS:
        raise ValueError(f"must be an integer from 0 to {MAX_LOGPROBS}, not {show(value)}")
    return int(number)


def _shape(value: object) -> str:
    return "a list of other things" if isinstance(value, list) else kind_of(value)

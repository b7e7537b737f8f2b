"""Fields that OpenAI's or vLLM's clients know and that are not built here.

Each maps to the values that ask for nothing beyond what happens anyway; they pass, any
other value is refused. Fields in no table and no model are unknown and mean nothing.
"""

from collections.abc import Mapping
from typing import Any

from deployments.openai.errors import unsupported
from deployments.validation import show

Neutral = tuple[object, ...]

_BOTH: Mapping[str, Neutral] = {
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "detokenize": (True,),
    "include_stop_str_in_output": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
}

CHAT: Mapping[str, Neutral] = {
    **_BOTH,
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "reasoning_effort": (),
    "include_reasoning": (True,),
}

COMPLETIONS: Mapping[str, Neutral] = {
    **_BOTH,
    "suffix": ("",),
    "add_special_tokens": (True,),
    "prompt_embeds": (),
}


def refuse_unbuilt(body: Mapping[str, Any], fields: Mapping[str, Neutral]) -> None:
    """Refuse a body that asks for something in ``fields``; nulls must be gone already.

    Raises:
        BadRequest: names the first such field, in the body's order.
    """
    for name, value in body.items():
        neutral = fields.get(name)
        if neutral is None or value is None or _among(value, neutral):
            continue
        simple = [
            show(item) for item in neutral if isinstance(item, bool | int | str) and item != ""
        ]
        instead = f"leave it out or set it to {simple[0]}" if simple else "leave it out"
        raise unsupported(name, instead)


def _among(value: object, neutral: Neutral) -> bool:
    # By type too: in Python False == 0 and True == 1, on the wire they differ.
    return any(type(value) is type(item) and value == item for item in neutral)

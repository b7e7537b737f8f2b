"""What can never run is refused when it is added, not found out when it is stuck."""

from engine.blocks import BlockSpace, blocks_for
from engine.request import EmptyPrompt, NeverFits, PromptTooLong, Request, is_int, require


def sequence_limit(request: Request, max_model_len: int, blocks: BlockSpace) -> int:
    """Return the length, prompt and generated, at which ``request`` has enough.

    Raises:
        EmptyPrompt: there is no token to start from.
        InvalidParam: ``max_tokens`` is below 1, or ``generated`` leaves nothing to do.
        PromptTooLong: prompt and generated leave no room below ``max_model_len``.
        NeverFits: the longest it may become needs more blocks than there are.
    """
    if not request.prompt:
        raise EmptyPrompt
    most, made = request.max_tokens, len(request.generated)
    require(is_int(most, 1), "max_tokens", most, "an integer from 1")
    require(made < most, "generated", made, f"fewer tokens than max_tokens, {most}")
    tokens = len(request.prompt) + made
    if tokens >= max_model_len:
        raise PromptTooLong(tokens, max_model_len)
    longest = min(len(request.prompt) + most, max_model_len)
    needed = blocks_for(longest, blocks.block_tokens)
    if needed > blocks.total_blocks:
        raise NeverFits(needed, blocks.total_blocks)
    return longest

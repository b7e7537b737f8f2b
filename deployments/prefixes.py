"""What the router is told of the prompts of a call, so that they go where much of them is held."""

from dataclasses import replace

from deployments.openai.call import Call
from deployments.prefix import prefix_of


def with_prefixes(call: Call, block_tokens: int, salt: bytes) -> Call:
    """Return the call with the prefix of each of its prompts, computed once for all its choices."""
    jobs = []
    for first in range(0, len(call.jobs), call.each):
        prefix = prefix_of(call.jobs[first].prompt, block_tokens, salt)
        jobs += [replace(job, prefix=prefix) for job in call.jobs[first : first + call.each]]
    return replace(call, jobs=tuple(jobs))

"""A load in one line."""

from statistics import median

from experiments.loads.load import Load


def summary(load: Load) -> str:
    """Return how many requests a load has, how fast they come and how long they are."""
    arrivals = load.arrivals
    seconds = load.seconds
    rate = f", {len(arrivals) / seconds:.3g} a second" if seconds else ""
    prompt = median(one.prompt_tokens for one in arrivals)
    output = median(one.output_tokens for one in arrivals)
    return (
        f"{load.name}: {len(arrivals):,} requests in {seconds:,.0f} s{rate}; "
        f"tokens, median: {prompt:,.0f} of prompts, {output:,.0f} of answers"
    )

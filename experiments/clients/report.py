"""The result as a page of Markdown."""

from collections.abc import Sequence

from experiments.clients.client import Load, Outcome


def as_markdown(outcomes: Sequence[Outcome], load: Load, where: str) -> str:
    """Return a table of what each client saw.

    Args:
        outcomes: one for each client.
        load: the same for all.
        where: the machine and the day.
    """
    lines = [
        "# What other people's clients see",
        "",
        f"{load.requests} streamed chat requests, {load.concurrency} at a time, "
        f"{load.prompt_tokens} tokens of prompt before the chat template, {load.output_tokens} of "
        f"answer ({where}). Made by `python -m experiments.clients`.",
        "",
        "| client | version | answers | errors | output tokens | first token | between tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        lines.append(
            f"| {one.client} | {one.version} | {one.completed} of {load.requests} | {one.failed} "
            f"| {one.output_tokens} of {load.requests * load.output_tokens} "
            f"| {_ms(one.ttft_ms)} | {_ms(one.itl_ms)} |"
        )
    lines += [
        "",
        "Times are medians as the client counts them, which differs from client to client. They",
        "are here to show that each client finds what it looks for; the clients ran one after the",
        "other on the machine that served, so they are no measure of the server's speed.",
        "",
    ]
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f} ms"

"""Server: what a live server tells of itself before a load is sent to it."""

from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from experiments.replay.broken import broken
from experiments.replay.target import TargetError

_PATIENCE: Final = aiohttp.ClientTimeout(total=30.0)


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the OpenAI API.

    Attributes:
        model: that it serves; the first, if there are several.
        context: tokens that a prompt and its answer may have together; None if it does not tell.
        version: of its program; empty if it does not tell.
    """

    model: str
    context: int | None
    version: str


async def ask(
    session: aiohttp.ClientSession, url: URL, api_key: str | None, model: str | None
) -> Server:
    """Ask a server what it is.

    Args:
        session: asks it.
        url: of the server, ending with a slash.
        api_key: that it may want.
        model: to use; None for the first that it lists.

    Raises:
        TargetError: it does not answer, wants another key, or lists no model where none is named.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    status, listed = await _get(session, url / "v1/models", headers)
    if status == 401:
        raise TargetError("the server asks for a key, or for another one: --api-key")
    models = listed.get("data") if isinstance(listed, dict) else None
    known = [
        one for one in models or () if isinstance(one, dict) and isinstance(one.get("id"), str)
    ]
    if model is None and not known:
        raise TargetError(f"{url}v1/models lists no model (HTTP {status}): name one with --model")
    name = model if model is not None else known[0]["id"]
    context = next((one.get("max_model_len") for one in known if one["id"] == name), None)
    _, told = await _get(session, url / "version", headers)
    version = told.get("version") if isinstance(told, dict) else None
    return Server(
        name,
        context if isinstance(context, int) else None,
        version if isinstance(version, str) else "",
    )


async def _get(
    session: aiohttp.ClientSession, url: URL, headers: dict[str, str]
) -> tuple[int, Any]:
    """Return an answer's status and its JSON, None if that is none."""
    try:
        async with session.get(url, headers=headers, timeout=_PATIENCE) as answer:
            try:
                return answer.status, await answer.json(content_type=None)
            except ValueError:
                return answer.status, None
    except (aiohttp.ClientError, OSError) as error:
        raise TargetError(f"{url.origin()} does not answer: {broken(error).reason}") from None

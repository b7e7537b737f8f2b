"""``tidegate top``: what a deployment does, at a glance, in a terminal."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import httpx
from rich.console import Console, RenderableType
from rich.live import Live

from deployments.screen import alone, screen
from deployments.trend import Lately, Load, Trend

PATIENCE_S = 5.0
_PARTS: Final = {
    "model": str, "queue": dict, "tenants": list, "replicas": list, "totals": dict, "ttft": dict
}  # fmt: skip


class Unseen(Exception):
    """There is no snapshot; the message says why, in a few words.

    Attributes:
        final: asking again is of no use.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class Options:
    """What to look at.

    Attributes:
        url: of the server; the ``/v1`` that clients add to it may be there.
        api_key: its key, if it asks for one.
        interval_s: between two looks, in seconds.
        once: look once and end.
    """

    url: str
    api_key: str | None = None
    interval_s: float = 1.0
    once: bool = False


class Watch:
    """Looks at a deployment; keeps the last that it saw while nothing newer comes.

    Args:
        client: asks the server.
        clock: seconds, never going back.
    """

    def __init__(self, client: httpx.Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._trend = Trend()
        self._seen: tuple[Load, Lately] | None = None

    def look(self, height: int | None) -> RenderableType:
        """Return the screen as it is now.

        Args:
            height: lines that there are; None for as many as it takes.

        Raises:
            Unseen: nothing was ever seen, or asking again is of no use.
        """
        trouble = ""
        try:
            load = self._ask()
            self._seen = load, self._trend.add(self._clock(), load)
        except Unseen as unseen:
            if self._seen is None or unseen.final:
                raise
            trouble = str(unseen)
        return screen(*self._seen, trouble, height)

    def _ask(self) -> Load:
        try:
            answer = self._client.get("/load")
        # The latter for a name that no host can have.
        except (httpx.TransportError, UnicodeError):
            raise Unseen("the server does not answer") from None
        except httpx.DecodingError:
            raise self._foreign() from None
        if answer.status_code == 401:
            raise Unseen("the server asks for its API key: --api-key", final=True)
        if answer.status_code == 404:
            raise Unseen("the server has no /load: it is not Tidegate", final=True)
        if answer.status_code == 503:
            raise Unseen("the router is being restarted")
        if answer.status_code != 200:
            raise Unseen(f"the server answers {answer.status_code}")
        try:
            load = answer.json()
        except ValueError:
            raise self._foreign() from None
        if not _is_load(load):
            raise self._foreign()
        return load

    def _foreign(self) -> Unseen:
        # Where Tidegate has answered before, a balancer may speak for it in between.
        return Unseen("the server does not answer as Tidegate", final=self._seen is None)


def run(options: Options, console: Console) -> int:
    """Show it until Ctrl-C; returns the exit code."""
    try:
        with _client(options) as client:
            watch = Watch(client, time.monotonic)
            if options.once or not console.is_terminal:
                console.print(watch.look(None))
            else:
                _keep_looking(watch, options.interval_s, console)
    except Unseen as unseen:
        print(f"tidegate top: {unseen}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _client(options: Options) -> httpx.Client:
    """Return what asks the server.

    Raises:
        Unseen: that address or key cannot be one.
    """
    key = options.api_key
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        reason = "the API key must be printable ASCII characters without spaces"
        raise Unseen(reason, final=True)
    try:
        url = httpx.URL(options.url.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        reason = f"--url must be as http://127.0.0.1:8000, not {options.url!r}"
        raise Unseen(reason, final=True)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # Not through a proxy that the environment may name: mostly it is on this machine.
    return httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False)


def _is_load(value: Any) -> TypeGuard[Load]:
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) for name, kind in _PARTS.items()
    )


def _keep_looking(watch: Watch, interval_s: float, console: Console) -> None:
    with Live(alone("connecting"), console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(watch.look(console.height), refresh=True)
            except Unseen as unseen:
                if unseen.final:
                    raise
                live.update(alone(str(unseen)), refresh=True)
            time.sleep(interval_s)

"""``tidegate top``: what a deployment does, at a glance, in a terminal."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from rich.console import Console, RenderableType
from rich.live import Live

from deployments.screen import alone, screen
from deployments.trend import Lately, Load, Trend

PATIENCE_S = 5.0


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
        url: of the server.
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
            Unseen: nothing was ever seen, or the key is wrong.
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
        except httpx.TransportError:
            raise Unseen("the server does not answer") from None
        if answer.status_code == 401:
            raise Unseen("the server asks for its API key: --api-key", final=True)
        if answer.status_code == 404:
            raise Unseen("the server has no /load: it is not Tidegate", final=True)
        if answer.status_code == 503:
            raise Unseen("the router is being restarted")
        if answer.status_code != 200:
            raise Unseen(f"the server answers {answer.status_code}")
        load: Load = answer.json()
        return load


def run(options: Options, console: Console) -> int:
    """Show it until Ctrl-C; returns the exit code."""
    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    # Not through a proxy that the environment may name: mostly it is on this machine.
    with httpx.Client(
        base_url=options.url, headers=headers, timeout=PATIENCE_S, trust_env=False
    ) as client:
        watch = Watch(client, time.monotonic)
        try:
            if options.once or not console.is_terminal:
                console.print(watch.look(None))
            else:
                _keep_looking(watch, options.interval_s, console)
        except Unseen as unseen:
            Console(stderr=True).print(f"tidegate top: {unseen}", highlight=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:
            pass
    return 0


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

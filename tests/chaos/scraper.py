"""The scraper: asks for metrics and health all the time, as a monitoring system does."""

import asyncio
from collections import Counter
from typing import Final

import httpx

from tests.deployments.conftest import samples

EVERY_S: Final = 1.0
HANG_S: Final = 30.0

_TOLD: Final = (
    *("request_success_total", "request_errors_total", "request_expired_total"),
    *("admission_rejections_total", "request_resumed_total", "replicas_lost_total"),
    *("num_preemptions_total", "num_admission_preemptions_total", "recomputed_tokens_total"),
    *("restored_tokens_total", "gap_admissions_total", "prefix_cache_hits_total"),
    "requests_placed_by_prefix_total",
)


class Scraper:
    """Adds up by how much counters rose, whoever is replaced meanwhile.

    Args:
        http: to the server.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._last: dict[str, float] = {}
        self._rises: Counter[str] = Counter()
        self.wrong: list[str] = []
        """What no monitoring system should get."""

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self._look("/health")
            if (page := await self._look("/metrics")) is not None:
                self._add(samples(page))

    async def _look(self, path: str) -> str | None:
        try:
            async with asyncio.timeout(HANG_S):
                answer = await self._http.get(path)
        except httpx.TransportError:
            return None  # its gateway died
        except TimeoutError:
            self.wrong.append(f"{path} hung")
            return None
        if answer.status_code != 200:
            if answer.status_code != 503 or not answer.headers.get("retry-after"):
                self.wrong.append(f"{path}: {answer.status_code} {answer.text[:200]}")
            return None
        return answer.text

    def _add(self, page: dict[str, float]) -> None:
        for series, value in page.items():
            before = self._last.get(series, 0.0)
            # A new process begins at 0.
            self._rises[series] += value - before if value >= before else value
        self._last |= page

    def __str__(self) -> str:
        told: Counter[str] = Counter()
        for series, rise in self._rises.items():
            name, _, labels = series.partition("{")
            if name in _TOLD and rise:
                told[name if "replica=" in labels else f"{name}{{{labels}"] += round(rise)
        return ", ".join(f"{name} {rise:g}" for name, rise in sorted(told.items()))

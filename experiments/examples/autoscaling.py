"""Load that comes and goes, and what the autoscaler makes of it: a line a second.

Start a deployment that scales, then this, in another terminal (docs/operations.md)::

    tidegate serve --autoscaling blocks --max-replicas 3 --num-blocks 64
    python -m experiments.examples.autoscaling
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

PREFIX = "tidegate:"


@dataclass(frozen=True, slots=True)
class Phase:
    """So many clients at once for so long, in seconds; each asks again when it is answered."""

    clients: int
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the phases against a server, one after the other; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=24, help="in the busy phase (24)")
    parser.add_argument("--busy", type=float, default=60.0, help="its length in seconds (60)")
    parser.add_argument("--idle", type=float, default=90.0, help="then idle, in seconds (90)")
    options = parser.parse_args(arguments)
    phases = [Phase(1, 5.0), Phase(options.clients, options.busy), Phase(0, options.idle)]
    try:
        asyncio.run(run(options.url, phases))
    except (httpx.TransportError, httpx.InvalidURL) as error:
        print(f"autoscaling: {options.url} does not answer: {error}", file=sys.stderr)
        return 1
    return 0


async def run(url: str, phases: Sequence[Phase]) -> None:
    """Send the load and print what the metrics page says meanwhile.

    Raises:
        httpx.TransportError: the page cannot be had, or not any more.
    """
    print("seconds  clients  replicas  running  waiting  oldest wait")
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=None, limits=limits, trust_env=False
    ) as http:
        began = time.monotonic()
        for phase in phases:
            clients = [asyncio.create_task(ask_for_ever(http, n)) for n in range(phase.clients)]
            until = time.monotonic() + phase.seconds
            try:
                while time.monotonic() < until:
                    print(f"{time.monotonic() - began:7.0f}  {phase.clients:7}", await state(http))
                    await asyncio.sleep(1.0)
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)


async def ask_for_ever(http: httpx.AsyncClient, number: int) -> None:
    """Ask, read the answer, ask again; when turned away, wait as long as the server says."""
    body = {"prompt": f"Story {number}:", "max_tokens": 200, "ignore_eos": True}
    while True:
        answer = await http.post("/v1/completions", json=body)
        if answer.status_code in (429, 503):
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        else:
            answer.raise_for_status()


async def state(http: httpx.AsyncClient) -> str:
    """One line of what ``/metrics`` says."""
    answer = await http.get("/metrics")
    if answer.status_code != 200:
        return f"/metrics: {answer.status_code}"
    lines = answer.text.splitlines()
    replicas = len(values(lines, "replica_report_age_seconds"))
    running = sum(values(lines, "num_requests_running"))
    waiting = sum(values(lines, "num_requests_waiting"))
    oldest = max(values(lines, "oldest_wait_seconds"), default=0.0)
    return f"{replicas:8}  {running:7.0f}  {waiting:7.0f}  {oldest:9.1f} s"


def values(lines: Sequence[str], name: str) -> list[float]:
    """All values of one metric on a Prometheus page."""
    return [
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{PREFIX}{name}{{")
    ]


if __name__ == "__main__":
    sys.exit(main())

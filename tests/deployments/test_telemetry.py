"""What operators are told by a server as a person starts it, across its processes."""

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.deployments.collector import Collector
from tests.deployments.conftest import API_KEY, Server, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.apart]

SECRET = "Xylophone"
TRACE = "0af7651916cd43dd8448eb211c80319c"
KEY = {"Authorization": f"Bearer {API_KEY}"}
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def server(short_queues: Server) -> Server:
    return short_queues


def ask(server: Server, name: str, **more: Any) -> httpx.Response:
    body = {"prompt": SECRET, "max_tokens": 4, "ignore_eos": True, **more}
    headers = KEY | {"x-request-id": name, "traceparent": CALLER}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)


def load(server: Server) -> list[dict[str, Any]]:
    """What the server shows of its replicas."""
    replicas = httpx.get(f"{server.url}/load", headers=KEY, timeout=30).json()["replicas"]
    return list(replicas)


def spans_of(traces: Collector) -> dict[str, tuple[str, Any]]:
    """Spans of our client's trace by id, each with the process that told of it."""
    found = {}
    for _, message in list(traces.took):
        for resource in message.resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    if span.trace_id.hex() == TRACE:
                        found[span.span_id.hex()] = named["service.instance.id"], span
    return found


def test_a_trace_goes_from_the_gateway_to_the_replica(server: Server, traces: Collector) -> None:
    assert ask(server, "traced").status_code == 200

    def complete() -> dict[str, tuple[str, Any]] | None:
        found = spans_of(traces)
        told = [span.name for _, span in found.values()]
        return found if {"replica", "POST /v1/completions"} <= set(told) else None

    found = eventually(complete)
    (here, stay), *_ = (one for one in found.values() if one[1].name == "replica")
    there, sequence = found[stay.parent_span_id.hex()]
    assert sequence.name == "text_completion tiny"
    assert here != there
    assert found[sequence.parent_span_id.hex()][1].name == "POST /v1/completions"
    # The replica tells which of those that /load names it is.
    assert here in {one["replica"] for one in load(server)}
    for _, span in found.values():
        assert SECRET not in str(span)


def lines(server: Server) -> list[dict[str, Any]]:
    """All lines of our deployments' logs."""
    return [
        json.loads(line)
        for path in (server.logs / "serve").glob("replica_*.log")
        for line in path.read_text().splitlines()
    ]


def test_logs_are_json_and_have_a_line_for_each_request(server: Server) -> None:
    assert ask(server, "logged", stream=True).status_code == 200
    ended = eventually(
        lambda: [line for line in lines(server) if line.get("request_id") == "logged"]
    )
    (line,) = (one for one in ended if "ended" in one["message"])
    assert (line["status"], line["outcome"], line["generated_tokens"]) == (200, "length", 4)
    assert line["prompt_tokens"] == len(SECRET)
    told = {line["deployment"].removeprefix("tidegate_") for line in lines(server)}
    assert told == {"Gateway", "Router", "Replica"}
    for path in (server.logs / "serve").iterdir():
        assert not path.is_file() or SECRET not in path.read_text(errors="replace")


def test_the_page_its_data_and_vllms_names_get_through_the_proxy(server: Server) -> None:
    assert ask(server, "counted").status_code == 200
    page = httpx.get(f"{server.url}/dashboard", timeout=30)
    assert (page.status_code, "<h1>Tidegate</h1>" in page.text) == (200, True)
    for name in ("style.css", "app.js", "history.js", "view.js"):
        assert httpx.get(f"{server.url}/dashboard/{name}", timeout=30).status_code == 200
    assert [one["total_blocks"] for one in load(server)] == [64, 64]
    metrics = httpx.get(f"{server.url}/metrics", timeout=30).text
    assert 'vllm:request_success_total{model_name="tiny",finished_reason="length"}' in metrics
    total = eventually(lambda: server.total("generation_tokens_total"))
    assert f'vllm:generation_tokens_total{{model_name="tiny"}} {int(total)}' in metrics


def test_top_looks_at_it(server: Server) -> None:
    eventually(server.idle)
    command = [sys.executable, "-m", "deployments.cli", "top", "--once", "--url", server.url]
    command += ["--api-key", API_KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Tidegate  tiny" in done.stdout
    assert done.stdout.count("0/64") == 2

"""The scripts around other people's clients; the clients themselves need gigabytes."""

import json
import sys
from pathlib import Path

import pytest

from experiments.clients import command
from experiments.clients.client import Client, ClientFailed, Load, Outcome, Server
from experiments.clients.environment import Environment
from experiments.clients.known import CLIENTS
from experiments.clients.report import as_markdown

LOAD = Load(requests=20, concurrency=4, prompt_tokens=64, output_tokens=16)
SERVER = Server("http://127.0.0.1:8000", "m", Path("/tok"))

# What each client left after a run against a real server, cut down to what is read.
RESULTS = {
    "aiperf": (
        "profile_export_aiperf.json",
        {
            "request_count": {"avg": 20.0},
            "error_summary": [],
            "total_usage_completion_tokens": {"avg": 320.0},
            "time_to_first_token": {"avg": 312.0, "p50": 334.2},
            "inter_token_latency": {"avg": 35.2, "p50": 33.7},
        },
    ),
    "guidellm": (
        "benchmarks.json",
        {
            "benchmarks": [
                {
                    "metrics": {
                        "request_totals": {"successful": 20, "errored": 0, "incomplete": 0},
                        "output_token_count": {"successful": {"total_sum": 320.0}},
                        "time_to_first_token_ms": {"successful": {"median": 334.2}},
                        "inter_token_latency_ms": {"successful": {"median": 33.7}},
                    }
                }
            ]
        },
    ),
    "vllm-bench": (
        "result.json",
        {
            "completed": 20,
            "failed": 0,
            "total_output_tokens": 320,
            "median_ttft_ms": 334.2,
            "median_itl_ms": 33.7,
        },
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_what_a_client_leaves_is_read(name: str, tmp_path: Path) -> None:
    file, content = RESULTS[name]
    (tmp_path / file).write_text(json.dumps(content))
    outcome = CLIENTS[name].read(tmp_path)
    assert (outcome.completed, outcome.failed, outcome.output_tokens) == (20, 0, 320)
    assert (outcome.ttft_ms, outcome.itl_ms) == (334.2, 33.7)
    assert outcome.complete(LOAD)


@pytest.mark.parametrize(
    ("completed", "failed", "tokens"), [(19, 1, 304), (20, 1, 320), (20, 0, 319), (0, 0, 0)]
)
def test_an_outcome_is_complete_only_with_every_token(
    completed: int, failed: int, tokens: int
) -> None:
    assert not Outcome("c", "1", completed, failed, tokens, 1.0, 1.0).complete(LOAD)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_load_is_on_every_command_line(name: str, tmp_path: Path) -> None:
    command = " ".join(CLIENTS[name].command(Environment(tmp_path), SERVER, LOAD))
    for part in (SERVER.url, "/tok", "64", "16", "20", "4"):
        assert part in command


class _Script(Client):
    name, version, requirements = "script", "1", ()

    def __init__(self, code: str) -> None:
        self._code = code

    def command(self, environment: Environment, server: Server, load: Load) -> list[str]:
        return [sys.executable, "-c", self._code]

    def read(self, results: Path) -> Outcome:
        seen = json.loads((results / "seen").read_text())
        return Outcome(self.name, self.version, len(seen), 0, 0, None, None)


def test_old_results_are_not_read_again_and_the_hub_is_as_the_client_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "elsewhere")
    environment = Environment(tmp_path)
    environment.results.mkdir()
    (environment.results / "old").touch()
    code = (
        "import json, os; assert not os.path.exists('old');"
        "json.dump([k for k in os.environ if k.startswith('HF_')], open('seen', 'w'))"
    )
    assert _Script(code).run(environment, SERVER, LOAD).completed == 1


def test_a_client_that_ends_badly_says_where_its_log_is(tmp_path: Path) -> None:
    with pytest.raises(ClientFailed) as caught:
        _Script("print('why'); raise SystemExit(3)").run(Environment(tmp_path), SERVER, LOAD)
    assert caught.value.status == 3
    assert caught.value.log.read_text() == "why\n"


def test_the_page_has_a_row_a_client() -> None:
    page = as_markdown([Outcome("c", "1.2", 19, 1, 304, 12.6, None)], LOAD, "x86_64, 2026-11-30")
    assert "| c | 1.2 | 19 of 20 | 1 | 304 of 320 | 13 ms | none |" in page.splitlines()


def test_the_command_line_asks_for_all_clients_or_some() -> None:
    parse = command.parser().parse_args
    assert parse(["--tokenizer", "/tok"]).only == list(CLIENTS)
    assert parse(["--tokenizer", "/tok", "--only", "aiperf"]).only == ["aiperf"]

"""tidegate top shows what the router says, and outlives it."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.testclient import TestClient

from deployments.cli import main
from deployments.http import build_http
from deployments.launch import free_ports
from deployments.messages import Vitals
from deployments.metrics import Counts
from deployments.top import Options, Unseen, Watch, run
from deployments.trend import Trend, quantile
from tests.deployments.watched import KEY, Deployment, busy, served


class Terminal:
    """Looks at a deployment every ten seconds."""

    def __init__(self, deployment: Deployment) -> None:
        self.now = 0.0
        self.watch = Watch(TestClient(build_http(deployment)), lambda: self.now)

    def look(self, width: int = 80, height: int | None = None) -> str:
        self.now += 10
        console = Console(width=width, height=height, file=io.StringIO(), record=True)
        console.print(self.watch.look(height))
        return console.export_text()


@pytest.fixture
def deployment() -> Deployment:
    one = Deployment()
    busy(one)
    return one


def line_of(text: str, start: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return line


@pytest.mark.parametrize("width", [80, 200])
def test_replicas_the_queue_and_what_runs_are_shown(deployment: Deployment, width: int) -> None:
    text = Terminal(deployment).look(width)
    assert max(map(len, text.splitlines())) <= width
    for replica, used, total, state in (
        ("n3f8a1kq", 384, 512, "serving"),
        ("p0c7w2ze", 492, 512, "serving"),
        ("x9d4m6tb", 64, 256, "leaving"),
    ):
        line = line_of(text, replica)
        assert f"{used}/{total}" in line
        assert line.rstrip().endswith(state)
    gauges = deployment.core.gauges()
    assert len(gauges.by_priority) == 3
    for one in gauges.by_priority:
        line = line_of(text, f"{one.priority:+d} " if one.priority else "0 ")
        assert re.search(rf" {one.queued} +\d", line)
    figures = text.splitlines()[3].split()
    running = sum(one.running for one in gauges.replicas)
    assert figures[:3] == [str(running), str(gauges.queued + 2), "73%"]


def test_bars_are_as_long_as_what_is_used(deployment: Deployment) -> None:
    text = Terminal(deployment).look(160)
    for name, share in (("n3f8a1kq", 384 / 512), ("x9d4m6tb", 64 / 256)):
        line = line_of(text, name)
        used, free = line.count("━"), line.count("─")
        assert used + free > 80
        assert used / (used + free) == pytest.approx(share, abs=0.01)


def test_the_fullest_are_shown_where_not_all_have_room() -> None:
    deployment = Deployment()
    for index in range(200):
        deployment.report(f"replica{index:03}", 512, 512 - 2 * index)
    terminal = Terminal(deployment)
    text = terminal.look(height=30)
    assert len(text.splitlines()) <= 30
    assert "replica199" in text
    assert "replica000" not in text
    shown = text.count("replica1")
    assert f"{200 - shown} more, less full" in text
    assert terminal.look(height=None).count("/512") == 200


def test_many_priorities_leave_room_for_replicas() -> None:
    deployment = Deployment()
    busy(deployment)
    for priority in range(1, 41):
        deployment.ask(f"p{priority}", priority, 200)
    text = Terminal(deployment).look(height=30)
    assert len(text.splitlines()) <= 30
    assert line_of(text, "+40 ")
    assert "34 lower priorities" in text
    assert "384/512" in text


def test_times_and_rates_are_differences(deployment: Deployment) -> None:
    deployment.counts.observe("time_to_first_token_seconds", 100.0, times=1000)
    terminal = Terminal(deployment)
    terminal.look()
    deployment.counts.observe("time_to_first_token_seconds", 0.2, times=8)
    deployment.counts.observe("time_to_first_token_seconds", 2.0, times=2)
    deployment.counts.observe("inter_token_latency_seconds", 0.01, times=990)
    deployment.counts.preempted(Vitals(True, 0, 0), Vitals(True, 7, 0))
    # As the page in the browser reckons; see test_dashboard.
    text = terminal.look()
    assert "194 ms" in text
    assert "p90 1.8 s" in text
    # Tokens are those of ten seconds: there is no snapshot of the last five.
    assert text.splitlines()[3].split()[-2:] == ["100", "42"]


@pytest.mark.parametrize("apart", [1.0, 5.01, 30.0, 60.5, 3600.0])
def test_any_time_between_two_snapshots_is_good_for_a_rate(apart: float) -> None:
    """Longer than the window, each was alone in it, and there was nothing to compare with."""
    deployment, trend = Deployment(), Trend()
    trend.add(0.0, deployment.snapshot())
    for look in range(1, 5):
        deployment.counts.observe("time_to_first_token_seconds", 0.2, times=4)
        deployment.counts.observe("inter_token_latency_seconds", 0.01, times=596)
        deployment.counts.preempted(Vitals(True, 0, 0), Vitals(True, 30, 0))
        lately = trend.add(look * apart, deployment.snapshot())
        assert lately.tokens_per_s == pytest.approx(600 / apart)
        assert lately.preemptions_per_min == pytest.approx(60 * 30 / apart)
        assert lately.first_tokens == 4 * max(1, min(look, int(60 / apart)))
        assert lately.ttft_p50 is not None


def test_what_is_older_than_the_window_and_not_needed_is_dropped() -> None:
    deployment, trend = Deployment(), Trend()
    for second in range(100):
        deployment.counts.observe("time_to_first_token_seconds", 0.2)
        lately = trend.add(float(second), deployment.snapshot())
    assert lately.first_tokens == 60
    assert lately.tokens_per_s == 1


def test_what_a_new_router_counts_is_not_compared_with_the_old_ones() -> None:
    trend = Trend()
    deployment = Deployment()
    deployment.counts.observe("inter_token_latency_seconds", 0.01, times=500)
    trend.add(0.0, deployment.snapshot())
    deployment.counts = Counts()
    lately = trend.add(1.0, deployment.snapshot())
    assert lately.tokens_per_s is None
    deployment.counts.observe("inter_token_latency_seconds", 0.01, times=30)
    assert trend.add(2.0, deployment.snapshot()).tokens_per_s == 30


@pytest.mark.parametrize(
    ("counts", "value"),
    [([0, 0, 0], None), ([4, 0, 0], 0.5), ([0, 4, 0], 1.5), ([0, 0, 1], 2.0), ([1, 1, 0], 1.0)],
)
def test_quantiles_are_as_prometheus_reckons(counts: list[int], value: float | None) -> None:
    assert quantile(0.5, [1.0, 2.0], counts) == value


def test_it_shows_the_last_there_was_while_the_router_is_away(deployment: Deployment) -> None:
    terminal = Terminal(deployment)
    assert "live" in terminal.look()
    deployment.down = True
    text = terminal.look()
    assert "the router is being restarted" in text
    assert "384/512" in text
    deployment.down = False
    assert "live" in terminal.look()


def test_no_replica_and_no_queue_are_said() -> None:
    text = Terminal(Deployment()).look()
    assert "No replica serves." in text
    assert "Nobody waits." in text


def test_a_wrong_key_is_the_end_of_it(deployment: Deployment) -> None:
    deployment.key = KEY
    with pytest.raises(Unseen, match="--api-key") as caught:
        Terminal(deployment).look()
    assert caught.value.final


# ---- the command ------------------------------------------------------------------------------


def test_the_command_prints_one_frame_into_a_pipe(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "80")
    deployment.key = KEY
    (port,) = free_ports(1)
    with served(deployment, port):
        assert main(["top", "--url", f"http://127.0.0.1:{port}"]) == 0
    out = capsys.readouterr().out
    assert "384/512" in out
    assert "\x1b" not in out
    assert main(["top", "--once", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert "tidegate top: the server does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        HTMLResponse("<h1>Welcome to nginx!</h1>"),
        JSONResponse({}),
        JSONResponse(["load"]),
        JSONResponse(None),
        JSONResponse({"model": "gpt", "queue": {}, "replicas": {}, "tenants": [], "totals": {}}),
        Response(b"\xff", media_type="application/json"),
        Response(b"plain", headers={"Content-Encoding": "gzip"}),
    ],
    ids=["html", "empty", "list", "null", "other", "binary", "encoding"],
)
def test_a_server_that_is_not_tidegate_is_one_line(
    deployment: Deployment, answer: Response, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.foreign = answer
    (port,) = free_ports(1)
    with served(deployment, port):
        assert main(["top", "--url", f"http://127.0.0.1:{port}"]) == 1
        assert run(Options(f"http://127.0.0.1:{port}"), Interrupted(8)) == 1
    line = "tidegate top: the server does not answer as Tidegate\n"
    assert capsys.readouterr().err == 2 * line


def test_what_answers_in_between_is_no_end(deployment: Deployment) -> None:
    """A balancer's page of regret has status 200 now and then."""
    terminal = Terminal(deployment)
    terminal.look()
    deployment.foreign = HTMLResponse("<h1>We will be back soon</h1>")
    text = terminal.look()
    assert "does not answer as Tidegate" in text
    assert "384/512" in text
    deployment.foreign = None
    assert "live" in terminal.look()


@pytest.mark.parametrize("key", ["sk-sch\xfcssel", "sk-\u20ac", "sk a", "sk\n", "sk\x7f"])
def test_a_key_that_no_header_can_carry_is_one_line(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--api-key", key]) == 1
    error = capsys.readouterr().err
    assert error == (
        "tidegate top: the API key must be printable ASCII characters without spaces\n"
    )


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://", "localhost:8000", "", "ftp://host", "http://\0", "http://h:port"],
)
def test_an_address_that_is_none_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", url]) == 1
    error = capsys.readouterr().err
    assert error == f"tidegate top: --url must be as http://127.0.0.1:8000, not {url!r}\n"


def test_a_name_that_no_host_can_have_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", f"http://{'a' * 70}"]) == 1
    assert capsys.readouterr().err == "tidegate top: the server does not answer\n"


@pytest.mark.parametrize("end", ["/", "/v1", "/v1/"])
def test_the_address_that_clients_use_is_good_too(
    deployment: Deployment, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    with served(deployment, port):
        assert main(["top", "--url", f"http://127.0.0.1:{port}{end}"]) == 0
    assert "384/512" in capsys.readouterr().out


class Interrupted(Console):
    """A terminal whose user presses Ctrl-C at some frame."""

    def __init__(self, frames: int) -> None:
        super().__init__(file=io.StringIO(), force_terminal=True, width=80, height=30)
        self.frames = frames
        self.said: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options)
        assert isinstance(self.file, io.StringIO)
        self.said.append(self.file.getvalue())
        self.frames -= 1
        if self.frames == 0:
            raise KeyboardInterrupt


def test_on_a_terminal_it_goes_on_until_ctrl_c(deployment: Deployment) -> None:
    (port,) = free_ports(1)
    options = Options(f"http://127.0.0.1:{port}", interval_s=0.01)
    terminal = Interrupted(8)
    assert run(options, terminal) == 0
    assert "the server does not answer" in terminal.said[-1]
    terminal = Interrupted(8)
    with served(deployment, port):
        assert run(options, terminal) == 0
    assert "384/512" in terminal.said[-1]
    # An interrupted program leaves the terminal as it was.
    assert isinstance(terminal.file, io.StringIO)
    assert terminal.file.getvalue().endswith("\x1b[?25h\x1b[?1049l")
    deployment.key = KEY
    with served(deployment, port):
        assert run(replace(options, api_key="sk-wrong"), Interrupted(8)) == 1


@pytest.mark.parametrize("value", ["0", "nan", "1e9"])
def test_a_wrong_interval_is_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--interval", value])
    assert capsys.readouterr().err.count("\n") == 1

"""The example of autoscaling: what it says when its server is not there, or goes away."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from experiments.examples.autoscaling import main


class _Fleeting(BaseHTTPRequestHandler):
    """Says how it is twice, and takes requests that it never answers; then it is gone."""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        if self.server.looks == 2:
            self.server.gone.set()
            return
        self.server.looks += 1
        page = b'tidegate:replica_report_age_seconds{replica="one"} 0.1\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.gone.wait(60)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Fleeting)
        self.looks = 0
        self.gone = threading.Event()


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.gone.set()
        server.shutdown()
        thread.join()


def test_a_server_that_goes_away_is_told_in_one_line(
    server: _Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    assert main(["--url", url, "--clients", "2"]) == 1
    said = capsys.readouterr()
    assert server.looks == 2
    assert len(said.out.splitlines()) == 3
    assert said.err.startswith(f"autoscaling: {url} does not answer: ")
    assert len(said.err.splitlines()) == 1


def test_a_server_that_is_not_there_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Server() as server:
        port = server.server_port
    assert main(["--url", f"http://127.0.0.1:{port}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"autoscaling: http://127.0.0.1:{port} does not answer: ")
    assert len(said.splitlines()) == 1

"""HAProxy with the configuration that Serve makes for it, in front of gateways that fail."""

import contextlib
import http.client
import http.server
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from deployments import haproxy
from deployments.launch import free_ports, serve_environment
from tests.deployments.conftest import eventually

BINARY = haproxy.haproxy_binary()
needs_haproxy = pytest.mark.skipif(BINARY is None, reason="there is no HAProxy here")


class Gateway(http.server.ThreadingHTTPServer):
    """Answers with what it got, when it may; or, by the path, with nonsense or an error.

    Args:
        dead: it drops every request.
    """

    def __init__(self, *, dead: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.dead = dead
        self.requests: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self.server_port
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, *_: object) -> None:
        """HAProxy drops its health checks as soon as it has seen the status."""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/-/healthz":
            self.answer(200, {})
            return
        self.server.requests.append(self.path)
        self.server.may_answer.wait()
        if self.server.dead:
            self.close_connection = True
        elif self.path == "/nonsense":
            self.wfile.write(b"hello\r\n\r\n")
            self.close_connection = True
        elif self.path == "/full":
            self.answer(503, {"error": "mine"})
        elif self.path == "/plain":
            self.answer(500, "it died", "text/plain; charset=utf-8")
        else:
            self.answer(200, {"length": len(body), "id": self.headers["x-request-id"]})

    do_GET = do_POST  # noqa: N815

    def answer(self, status: int, content: Any, kind: str = "application/json") -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Front:
    """HAProxy with the configuration that Serve makes for these gateways, as we revise it.

    Args:
        gateways: their ports; None while there is no application.
        fallback: the port of what takes requests while no gateway does.
    """

    def __init__(
        self, folder: Path, gateways: list[int] | None, fallback: int | None = None
    ) -> None:
        self.port, self.stats, metrics = free_ports(3)
        environ = serve_environment()
        # As Serve reads them when it is imported.
        config = HAProxyConfig(
            socket_path=str(folder / "admin.sock"),
            server_state_base=str(folder),
            server_state_file=str(folder / "state"),
            metrics_socket_path=str(folder / "metrics.sock"),
            stats_port=self.stats,
            metrics_port=metrics,
            nbthread=1,
            retry_on=environ["RAY_SERVE_HAPROXY_RETRY_ON"],
            retries=int(environ["RAY_SERVE_HAPROXY_RETRIES"]),
            bufsize=int(environ["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"]),
            http_options=HTTPOptions(host="127.0.0.1", port=self.port),
            is_head=True,
        )
        self.config = folder / "haproxy.cfg"
        serve = HAProxyApi(config, config_file_path=str(self.config))
        if gateways is not None:
            servers = [ServerConfig(f"gateway-{port}", "127.0.0.1", port) for port in gateways]
            backend = BackendConfig("http-tidegate", "/", servers=servers, app_name="tidegate")
            if fallback is not None:
                backend.fallback_server = ServerConfig("fallback", "127.0.0.1", fallback)
            serve.set_backend_configs({backend.name: backend})
        serve._generate_config_file_internal()
        assert BINARY is not None
        script = haproxy.wrap_haproxy(BINARY, folder)
        self.process = subprocess.Popen(
            [script, "-db", "-f", self.config, "-dR"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: socket.create_connection(("127.0.0.1", self.port)).close() is None)

    def ask(
        self, path: str, body: bytes = b"", *, method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Send a request, its body in a packet of its own as most clients do."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.putrequest(method, path)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        # HAProxy has one thread here: when it answers something else it has read the headers.
        other = http.client.HTTPConnection("127.0.0.1", self.stats, timeout=10)
        other.request("GET", "/stats;csv")
        other.getresponse().read()
        other.close()
        connection.send(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(content)


@contextlib.contextmanager
def front(folder: Path, gateways: list[int] | None, fallback: int | None = None) -> Iterator[Front]:
    one = Front(folder, gateways, fallback)
    try:
        yield one
    finally:
        one.process.terminate()
        one.process.wait(10)

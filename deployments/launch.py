"""Starting and stopping everything on this machine: Ray, Serve, HAProxy.

Ray reads its environment when it is imported, so this module imports it late.
"""

import contextlib
import http.client
import logging
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from deployments import processes
from deployments.config import ServeConfig
from deployments.failures import Broken, LaunchError, RayDied, StartFailed
from deployments.haproxy import haproxy_binary, wrap_haproxy
from deployments.periods import CONTROL_S
from deployments.watch import Watch, within

READY_TIMEOUT_S = 60.0
STOP_GRACE_S = 3.0
SETTLE_S = 1.0
# What Ray itself starts again, Serve's controller among it, is not here.
VITAL = ("gcs_server", "raylet")
_OBJECT_STORE_BYTES = 200 * 2**20

# What Ray looks after ten times a second by default, and what nobody can look at here, without
# Ray's dashboard: each time takes something from replicas on the same cores.
_CALM = {
    "RAY_raylet_check_gc_period_milliseconds": "1000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_local_fs_monitor_interval_ms": "5000",
    "RAY_memory_monitor_refresh_ms": "1000",
    "RAY_kill_idle_workers_interval_ms": "1000",
    "RAY_task_events_report_interval_ms": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}


def require_port(host: str, port: int) -> None:
    """Check that ``host:port`` can be listened on.

    Raises:
        LaunchError: it is taken, or not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise LaunchError(f"cannot listen on {host}:{port}: {reason}") from None


def free_ports(count: int) -> list[int]:
    """Return different ports that nobody listens on at the moment.

    From below the range of ports that the system hands out by itself: Ray's processes
    take dozens of those while it starts, perhaps the very ones that were found free.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = secrets.choice(range(20_000, 30_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            if port not in ports:
                ports.append(port)
    return ports


def serve_environment() -> dict[str, str]:
    """Return what Ray is to find in its environment on any machine.

    ``ray.env`` beside this file says the same to a shell.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Replicas are what the machine is for: at Ray's 15 anything else takes their cores.
        "RAY_worker_niceness": "0",
        # One step's tokens in one small message: gRPC halves what a Ray call costs.
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
        # One event loop a process instead of three: every hop between threads costs time to
        # the first token, and nothing here blocks a loop once it serves.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # How long a gateway that stops goes on taking requests. HAProxy is told at once, but
        # a new one has to start; the default of 30 s is for balancers that poll.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        # A gateway that comes or goes makes Serve start a new HAProxy. The old one ends with
        # its last stream, or after so long: above the longest stream, not two minutes.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        # One that hangs has nothing to finish; its requests are elsewhere by then.
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
        # Where a redeploy has begun to serve, it goes on though replicas of it die. Serve would
        # give it up at the second death, whatever the cause, and replace no replica any more.
        "RAY_SERVE_STOP_FAILED_ROLLING_UPDATES": "0",
        # A HAProxy that died is back in 7 s instead of 32.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        # Serve's controller looks after everything 2 times a second instead of 10: there is
        # little to see, and it took 3% of a core from whatever else runs there.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": str(CONTROL_S),
        # Serve's own counters, which Ray exports every 10 s, need no update ten times a second
        # in every process: a quarter of what a gateway did under load was that.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
        # A gateway that dies before it has answered takes no request with it: HAProxy sends
        # them to another. Nothing is done twice by that, since the requests of a dead gateway
        # are aborted. Three times at most, as often as a request may lose its replica: one
        # that kills gateways must not kill them all.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        # Only what fits HAProxy's buffer can be sent again: prompts of up to about 30,000
        # tokens. A request holds one such buffer until its answer begins.
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "131072",
        # One step's news of all of a gateway's requests goes in one message, and told
        # log-probabilities are long: with 4 MiB, the default, the stream would break, and a
        # replica that is well would count as lost.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": "268435456",
    }


def environment(folder: Path) -> dict[str, str]:
    """Return what must be in the environment before Ray is imported.

    Args:
        folder: for sockets and files of this run alone, so that two can run side by side.
    """
    variables = serve_environment()
    variables |= _CALM
    # One carries tens of thousands of tokens a second, and costs less for each the more wait.
    variables["RAY_SERVE_HAPROXY_NBTHREAD"] = str(min(4, 1 + (os.cpu_count() or 1) // 8))
    haproxy = haproxy_binary()
    if haproxy is None:
        variables["RAY_SERVE_ENABLE_HA_PROXY"] = "0"
    else:
        script = wrap_haproxy(haproxy, folder / "ha")
        variables["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(script)
    files = {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    }
    ports = (
        "RAY_SERVE_HAPROXY_METRICS_PORT",
        "RAY_SERVE_HAPROXY_STATS_PORT",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    )
    variables |= {name: str(folder / "ha" / file) for name, file in files.items()}
    variables |= {name: str(port) for name, port in zip(ports, free_ports(len(ports)), strict=True)}
    return variables


class LocalCluster:
    """A Ray cluster of one machine that ends with this process, whatever ends it.

    Use as a context manager. Leaving it ends all processes that were started in it. Its
    folder goes too, with the logs in it, unless it is left by `Broken`.

    Args:
        keep_logs: leave the folder, whatever ends this process.

    Attributes:
        folder: where everything that belongs to it is.
        watch: makes calls into its Ray, once it is started.
    """

    def __init__(self, *, keep_logs: bool = False) -> None:
        self._keep_logs = keep_logs
        self._mark = processes.new_mark()
        # Short: Unix sockets below it have paths of at most 107 bytes.
        self.folder = processes.make_folder(self._mark, Path(_short_tmp()))
        self._reaper: Any = None
        self._set: list[str] = []
        self.watch = Watch(())

    @property
    def logs(self) -> Path:
        """Where Ray and the deployments write their logs."""
        return self.folder / "session_latest" / "logs"

    @property
    def proxy_folder(self) -> Path:
        """Where HAProxy has its files and sockets."""
        return self.folder / "ha"

    def __enter__(self) -> "LocalCluster":
        self.proxy_folder.mkdir()
        ours = environment(self.folder)
        # What a person has set wins.
        self._set = [name for name in ours if name not in os.environ]
        os.environ.update({name: ours[name] for name in self._set})
        os.environ[processes.MARK] = self._mark
        doomed = None if self._keep_logs else self.folder
        self._reaper = processes.start_reaper(self._mark, doomed)
        return self

    def start(self, config: ServeConfig) -> None:
        """Start Ray.

        Raises:
            StartFailed: Ray does not start.
        """
        import ray

        replicas = config.replicas if config.autoscaling == "off" else config.max_replicas
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                # Ray's CPUs only have to suffice for its bookkeeping, also on one core.
                num_cpus=max(os.cpu_count() or 1, 4) + replicas + config.gateways,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(self.folder),
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except Exception as error:
            raise StartFailed(f"Ray does not start: {last_line(str(error))}") from error
        self.watch = Watch(processes.children(VITAL))
        processes.end_child("log_monitor.py")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # While a call is out its shutdown might wait for that, and Serve would then connect to
        # whatever else it finds; without a cluster it takes long to give up. See `left_open`.
        calm = self.watch.settled(SETTLE_S) and not (kind and issubclass(kind, RayDied))
        if calm and (ray := sys.modules.get("ray")):
            within(5.0, ray.shutdown)
        processes.end(self._mark, STOP_GRACE_S if calm else 0.0, (os.getpid(),))
        for name in (*self._set, processes.MARK):
            os.environ.pop(name, None)
        if self._reaper is not None:
            self._reaper.communicate(b"x")
        broken = kind is not None and issubclass(kind, Broken)
        if not (broken or self._keep_logs):
            shutil.rmtree(self.folder, ignore_errors=True)


def left_open() -> bool:
    """Whether Ray could not be shut down in this process, which should then end without it.

    Python's own end would try again, and wait for processes that are gone.
    """
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def run_app(config: ServeConfig) -> None:
    """Deploy the application on the Ray cluster in use and wait until all of it runs.

    Raises:
        StartFailed: a deployment does not come up.
    """
    from ray import serve

    from deployments.app import APP_NAME, build_app

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    app = build_app(config)
    try:
        serve.start(http_options={"host": config.host, "port": config.port})
        serve.run(app, name=APP_NAME, route_prefix="/")
    except Exception as error:
        reason = _failure(APP_NAME) or str(error)
        raise StartFailed(f"the deployment does not start: {last_line(reason)}") from error


def _failure(app: str) -> str | None:
    """Return what Serve knows of a deployment that did not start."""
    from ray import serve

    try:
        deployments = serve.status().applications[app].deployments
    except Exception:  # Serve may be what failed
        return None
    messages = [one.message for one in deployments.values() if one.status.value != "HEALTHY"]
    return next((message for message in messages if message), None)


def wait_ready(config: ServeConfig, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Wait until requests get through.

    Raises:
        StartFailed: they do not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    # Not through the proxy that the environment may name: it is on this machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(f"{url(config)}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            raise StartFailed(f"{url(config)}/health does not answer after {timeout_s:g} s")
        time.sleep(0.1)


def url(config: ServeConfig) -> str:
    """Return the server's address as this machine reaches it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def last_line(text: str) -> str:
    """Return what a traceback or a long message boils down to.

    The innermost error of a chain stands first among the lines that look like one, but
    Ray puts its own around it: the last such line is the one that was raised.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|[a-z]\w+): ", line)]
    if errors:
        return re.sub(r"^[\w.]+\.", "", errors[-1])
    return lines[-1] if lines else "no reason given"


def _short_tmp() -> str:
    return "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()

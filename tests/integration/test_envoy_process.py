"""Envoy as a child: it comes, it comes back, and it never stays behind."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.errors import Bug
from supervisor_middleware.supervisor.envoy import EnvoyProcess, EnvoyUnavailable, Patience, find_envoy
from supervisor_middleware.supervisor.envoy_config import DynamicForward, ProxyConfig, TcpAddress, UnixAddress
from tests.waiting import eventually

QUICK = Patience(backoff=0.02, ready=10, stop=2)
# Starts Envoy, says its process id, and waits to be killed.
PARENT = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_envoy_process import an_envoy

async def main():
    envoy = an_envoy(Path(sys.argv[1]))
    await envoy.start()
    print(envoy.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not tmp_path: a unix socket's path must be short.
    made = Path(tempfile.mkdtemp(prefix="smw-"))
    yield made
    shutil.rmtree(made)


def an_envoy(
    directory: Path,
    *,
    binary: Path | None = None,
    patience: Patience = QUICK,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> EnvoyProcess:
    processor = UnixAddress(str(directory / "nobody.sock"))
    config = ProxyConfig(listen=TcpAddress("127.0.0.1", 0), processor=processor, upstream=DynamicForward())
    return EnvoyProcess(config, directory=directory / "envoy", binary=binary, patience=patience, sleep=sleep)


def a_script(directory: Path, text: str) -> Path:
    path = directory / "script"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


async def test_it_starts_ready_and_stops_without_a_trace(directory: Path) -> None:
    envoy = an_envoy(directory)
    await envoy.start()
    pid = envoy.pid
    assert pid is not None
    assert await envoy.is_ready()
    assert (await envoy.listening()).port > 0
    await envoy.stop()
    assert not is_running(pid)
    assert envoy.pid is None
    assert not await envoy.is_ready()
    assert envoy.exits == 0
    await envoy.stop()


async def test_its_files_are_private(directory: Path) -> None:
    envoy = an_envoy(directory)
    await envoy.start()
    try:
        assert (directory / "envoy").stat().st_mode & 0o777 == 0o700
    finally:
        await envoy.stop()


async def test_the_admin_interface_tells_readiness_and_ports_only(directory: Path) -> None:
    envoy = an_envoy(directory)
    await envoy.start()
    try:
        status, _ = await envoy._ask("/config_dump")
        assert status == "403"
    finally:
        await envoy.stop()


async def test_an_envoy_that_dies_comes_back(directory: Path) -> None:
    envoy = an_envoy(directory)
    await envoy.start()
    try:
        first = envoy.pid
        assert first is not None
        with capture_logs() as logs:
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: envoy.exits == 1 and envoy.pid not in {None, first})
        async with asyncio.timeout(QUICK.ready):
            while not await envoy.is_ready():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        assert any("ended unexpectedly" in log["event"] for log in logs)
    finally:
        await envoy.stop()


async def test_restarts_wait_longer_each_time_up_to_a_ceiling(directory: Path) -> None:
    waits: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            enough.set()
            await asyncio.Event().wait()

    patience = Patience(backoff=1, ceiling=3)
    envoy = an_envoy(directory, binary=a_script(directory, "exit 1"), patience=patience, sleep=sleep)
    supervision = asyncio.create_task(envoy._supervise(directory / "script"))
    async with asyncio.timeout(5):
        await enough.wait()
    supervision.cancel()
    assert waits == [1, 2, 3, 3]


async def test_an_envoy_that_cannot_run_is_reported_at_once(directory: Path) -> None:
    envoy = an_envoy(directory, binary=a_script(directory, "echo 'bad config' >&2; exit 1"))
    with capture_logs() as logs, pytest.raises(EnvoyUnavailable, match="ended as soon as it was started"):
        await envoy.start()
    assert envoy.pid is None
    assert "bad config" in str(logs)


async def test_an_envoy_that_never_becomes_ready_is_given_up_and_ended(directory: Path) -> None:
    patience = Patience(ready=0.3, stop=0.2)
    envoy = an_envoy(directory, binary=a_script(directory, "trap '' TERM; sleep 60 & wait; wait"), patience=patience)
    with pytest.raises(EnvoyUnavailable, match="did not become ready"):
        await envoy.start()
    assert envoy.pid is None


async def test_it_is_started_once(directory: Path) -> None:
    envoy = an_envoy(directory)
    await envoy.start()
    try:
        with pytest.raises(Bug):
            await envoy.start()
    finally:
        await envoy.stop()


async def test_it_dies_with_its_parent(directory: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(directory)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not is_running(pid))


async def test_a_log_line_is_capped(directory: Path) -> None:
    long = a_script(directory, "head -c 200000 /dev/zero | tr '\\0' x >&2; echo >&2; echo short >&2; exit 1")
    with capture_logs() as logs, pytest.raises(EnvoyUnavailable):
        await an_envoy(directory, binary=long).start()
    assert max(len(str(log)) for log in logs) < 2000
    assert "short" in [log.get("line") for log in logs]


def test_the_binary_comes_from_its_own_wheel() -> None:
    assert find_envoy().parts[-3:] == ("envoy", "_bin", "envoy")


def test_without_the_wheel_the_path_is_searched(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(directory))
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(EnvoyUnavailable, match="pip install"):
        find_envoy()
    (directory / "envoy").write_text("")
    (directory / "envoy").chmod(0o755)
    assert find_envoy() == directory / "envoy"

"""`/healthz`, `/readyz` and `/metrics` over plain HTTP. Says yes or no and why, in the platform's own words."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from supervisor_middleware.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What is behind the three paths; a probe gives what is wrong, or nothing."""

    alive: Callable[[], str | None]
    ready: Callable[[], str | None]
    metrics: Callable[[], bytes]


async def serve_health(probes: Probes, *, host: str, port: int) -> web.AppRunner:
    """Start serving; the runner's `cleanup` stops it."""

    def answer(probe: Callable[[], str | None]) -> web.Response:
        problem = probe()
        return web.Response(
            text="ok\n" if problem is None else problem + "\n", status=200 if problem is None else 503
        )

    async def healthz(_: web.Request) -> web.Response:
        return answer(probes.alive)

    async def readyz(_: web.Request) -> web.Response:
        return answer(probes.ready)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=probes.metrics(), content_type="text/plain", charset="utf-8")

    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)} (health: SMW_HEALTH_PORT)"
        ) from error
    return runner


@contextlib.asynccontextmanager
async def serving_health(probes: Probes, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve inside the block; yields the port.

    Raises:
        Unavailable: the address is taken, or none of ours.
    """
    runner = await serve_health(probes, host=host, port=port)
    try:
        yield port_of(runner)
    finally:
        await runner.cleanup()


def port_of(runner: web.AppRunner) -> int:
    """The bound port, for one that was asked for as 0."""
    return int(runner.addresses[0][1])

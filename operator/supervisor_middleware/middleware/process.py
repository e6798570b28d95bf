"""From a `Middleware` to a process: serve until asked to stop. The services that this product brings are listed here.

Called by `smw serve` and by an author's `__main__`; the only module of the SDK that touches signals.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware.server import DEFAULT_GRACE_SECONDS, serve
from supervisor_middleware.middleware.service import Middleware
from supervisor_middleware.middleware.terms import Terms
from supervisor_middleware.middleware.tls import TlsFiles, members_of

SERVICES: Final[Mapping[str, Callable[[], Middleware]]] = MappingProxyType({"terms": Terms})
"""What `smw serve` can serve, by name."""


async def run(
    middleware: Middleware,
    *,
    address: str,
    tls_dir: Path | None = None,
    client_ca: Path | None = None,
    trust_domain: str | None = None,
    ready: Callable[[int], None] | None = None,
    grace: float = DEFAULT_GRACE_SECONDS,
) -> None:
    """Serve `middleware` until SIGTERM, SIGINT or cancellation, then stop gracefully.

    Args:
        middleware: what answers.
        address: `host:port`; port 0 takes a free one.
        tls_dir: holds `tls.crt` and `tls.key`, read again at every handshake; None is plaintext.
        client_ca: the operator's trust bundle; with it client certificates are required.
        trust_domain: callers must belong to it; by default whoever `client_ca` vouches for may call.
        ready: called with the bound port.
        grace: seconds that running calls get at the end.

    Raises:
        InvalidInput, OSError: it cannot be served as asked.
    """
    if client_ca is not None and tls_dir is None:
        raise InvalidInput("a client CA needs a TLS directory: without TLS there are no client certificates")
    if trust_domain is not None and client_ca is None:
        raise InvalidInput("a trust domain needs a client CA: without it callers prove nothing")
    server = await serve(
        middleware,
        address=address,
        tls=None if tls_dir is None else TlsFiles(directory=tls_dir, client_ca=client_ca),
        allowed_callers=None if trust_domain is None else members_of(trust_domain),
    )
    try:
        if ready is not None:
            ready(server.port)
        await _stop_signal()
    finally:
        await server.stop(grace)


async def run_service(
    name: str,
    *,
    address: str,
    tls_dir: Path | None = None,
    client_ca: Path | None = None,
    trust_domain: str | None = None,
    ready: Callable[[int], None] | None = None,
) -> None:
    """`run` for the service called `name` in `SERVICES`.

    Raises:
        InvalidInput: there is none of that name; or as `run`.
    """
    if name not in SERVICES:
        raise InvalidInput(f"there is no service of that name: {', '.join(sorted(SERVICES))} can be served")
    await run(
        SERVICES[name](),
        address=address,
        tls_dir=tls_dir,
        client_ca=client_ca,
        trust_domain=trust_domain,
        ready=ready,
    )


async def _stop_signal() -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, asked.set)
    try:
        await asked.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)

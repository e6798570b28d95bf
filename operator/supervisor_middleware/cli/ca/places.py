"""Where the root of identities is asked about: a state directory, or a cluster."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from supervisor_middleware.cli.kubeconfig import default_kubeconfig
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.rotation_files import read_status, request_rotation
from supervisor_middleware.pki.rotation_requests import Request


class Place(Protocol):
    """What both can do; each may raise `InvalidInput` and `Unavailable`."""

    async def status(self) -> Mapping[str, Any]:
        """Where the rotation stands."""

    async def ask(self, request: Request) -> None:
        """Leave a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which one is meant."""

    state: Path | None = None
    kubeconfig: Path | None = None
    namespace: str = "supervisor-middleware"


@asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Place]:
    """The place, until the end of the block.

    Raises:
        InvalidInput: it is not clear which.
    """
    if target.state is not None:
        if target.kubeconfig is not None:
            raise InvalidInput("--state and --kubeconfig exclude each other: one machine, or a cluster")
        yield _Directory(target.state)
        return
    from supervisor_middleware.cli.ca.cluster import Cluster
    from supervisor_middleware.sources.cluster_api import connect

    async with await connect(target.kubeconfig or default_kubeconfig()) as api:
        yield Cluster(api, target.namespace)


@dataclass(frozen=True, slots=True)
class _Directory:
    path: Path

    async def status(self) -> Mapping[str, Any]:
        return await asyncio.to_thread(read_status, self.path)

    async def ask(self, request: Request) -> None:
        await asyncio.to_thread(request_rotation, self.path, request)

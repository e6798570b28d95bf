"""An operator on a real API server, for benchmarks, and a client that costs little beside it.

kubectl costs more than what is measured, so writes go over kept connections.
"""

import asyncio
import json
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import aiohttp

from e2e.controlplane.cluster import ControlPlane
from e2e.controlplane.commands import Layout
from e2e.harness import Installation
from e2e.objects import API_VERSION, Document, a_policy, an_entry

POLICIES: Final = f"/apis/{API_VERSION}/sandboxpolicies"
CONFIGS: Final = 3
_ROOT: Final = Path(__file__).resolve().parents[2]
_CRDS: Final = _ROOT / "crds"
_CALL_SECONDS: Final = 60.0
_MERGE_PATCH: Final = "application/merge-patch+json"
_APPLY_PATCH: Final = "application/apply-patch+yaml"
_BREAK_GLASS: Final = {
    "Impersonate-User": "benchmark",
    "Impersonate-Group": "system:masters,middleware.openshell.io:break-glass",
}

_Item = TypeVar("_Item")


def note(text: str) -> None:
    """Progress, apart from the figures."""
    sys.stderr.write(f"  {text}\n")


@contextmanager
def installed(*, environment: Mapping[str, str] | None = None, module: str | None = None) -> Iterator[Installation]:
    """A fresh control plane with the operator on it, until the end of the block; `module` is what runs as it."""
    # Ended from outside, it must take its processes along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with TemporaryDirectory() as folder, ControlPlane() as plane:
        files = [f"--filename={path}" for path in sorted(_CRDS.glob("*.yaml"))]
        plane.kubectl("apply", "--server-side", *files)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)
        environment = {**_allocation(), **(environment or {})}
        installation = Installation(plane, Path(folder) / "operator", environment=environment)
        installation.operator.module = module or installation.operator.module
        with installation:
            note("the operator is ready")
            yield installation


def _allocation() -> Mapping[str, str]:
    """How the image has memory allocated."""
    return dict(re.findall(r"\b(MALLOC_\w+)=(\S+)", (_ROOT / "Containerfile").read_text(encoding="utf-8")))


class Client:
    """The administrator over kept connections. Whatever is not a success is an error."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        """`session` proves who we are."""
        self._session, self._url = session, url

    async def apply(self, document: Mapping[str, Any], *, query: str = "") -> Document:
        """Server-side apply."""
        return await self._send("PATCH", f"{path_of(document)}?fieldManager=benchmark&force=true{query}", document)

    async def try_create(self, document: Mapping[str, Any]) -> None:
        """Create it, as a dry run."""
        await self._send("POST", f"{collection_of(document)}?dryRun=All", document)

    async def force(self, document: Mapping[str, Any]) -> Document:
        """Server-side apply past our webhook, as the break-glass group."""
        path = f"{path_of(document)}?fieldManager=benchmark&force=true"
        return await self._send("PATCH", path, document, headers=_BREAK_GLASS)

    async def merge(self, path: str, change: Any) -> Document:
        """Merge patch."""
        return await self._send("PATCH", path, change, content_type=_MERGE_PATCH)

    async def create(self, path: str, body: Mapping[str, Any]) -> Document:
        """Create something at a path."""
        return await self._send("POST", path, body, content_type="application/json")

    async def replace(self, path: str, body: Mapping[str, Any]) -> Document:
        """Replace what is at a path."""
        return await self._send("PUT", path, body, content_type="application/json")

    async def get(self, path: str) -> Document:
        """Read."""
        return await self._send("GET", path, None)

    async def watch(self, path: str, *, since: str) -> AsyncIterator[tuple[str, Document]]:
        """Events as they come, and the objects in them."""
        timeout = aiohttp.ClientTimeout(total=None)
        query = f"?watch=true&resourceVersion={since}"
        async with self._session.get(f"{self._url}{path}{query}", timeout=timeout) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Document:
        kind = content_type or ("application/json" if method == "POST" else _APPLY_PATCH)
        data = None if body is None else json.dumps(body).encode()
        given = [("Content-Type", kind)]
        for name, value in (headers or {}).items():
            given += [(name, one) for one in value.split(",")]
        async with self._session.request(method, self._url + path, data=data, headers=given) as response:
            text = await response.read()
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise AssertionError(f"{method} {path}: {response.status} {text.decode()[:500]}")
            found: Document = json.loads(text)
            return found


@asynccontextmanager
async def client_of(plane: ControlPlane) -> AsyncIterator[Client]:
    """The administrator's client."""
    layout = Layout(directory=plane.directory)
    tls = ssl.create_default_context(cafile=str(layout.authority))
    tls.load_cert_chain(*layout.admin)
    timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    connector = aiohttp.TCPConnector(ssl=tls, limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Client(session, plane.url)


async def at_once(count: int, items: Iterable[_Item], work: Callable[[_Item], Awaitable[object]]) -> None:
    """`count` workers take the items in turn."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(worker())


def a_benchmark_policy(number: int, namespace: str, *, edit: int = 0) -> Document:
    """A policy of three configs of the built-in, for one sandbox."""
    entries = {
        f"config{i}": an_entry(
            order=10 * i,
            config={"mode": "redact"},
            include=(f"api{i}.edit-{edit}.example.com", f"**.team-{i}.example.org"),
        )
        for i in range(CONFIGS)
    }
    return a_policy(f"policy-{number}", namespace=namespace, selector={"app": f"app-{number}"}, **entries)


def a_namespace(name: str) -> Document:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


_PLURALS: Final = {
    "Namespace": "namespaces",
    "ConfigMap": "configmaps",
    "Pod": "pods",
    "SandboxPolicy": "sandboxpolicies",
    "SupervisorMiddleware": "supervisormiddlewares",
    "ServiceAccount": "serviceaccounts",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


def collection_of(document: Mapping[str, Any]) -> str:
    """Where objects of this kind are."""
    group = "/api/v1" if document["apiVersion"] == "v1" else f"/apis/{document['apiVersion']}"
    namespace = document["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{group}{place}/{_PLURALS[document['kind']]}"


def path_of(document: Mapping[str, Any]) -> str:
    """Where it is."""
    return f"{collection_of(document)}/{document['metadata']['name']}"


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def processor_seconds(pid: int) -> float:
    """What a process used of the processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def pid_of(installation: Installation) -> int:
    """The operator's process."""
    if installation.operator.running is None:
        raise AssertionError("the operator does not run")
    return installation.operator.running.pid

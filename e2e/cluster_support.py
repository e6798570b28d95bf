"""What tests of the cluster edge share: the operator's ServiceAccount, a running source, objects to apply."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import operator_rbac
from supervisor_middleware.handlers import SILENCE, keep_watching
from supervisor_middleware.model.sandbox import API_VERSION, SANDBOX_LABEL
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.sources.cluster import ClusterSource
from supervisor_middleware.sources.cluster_api import ClusterApi, connect
from supervisor_middleware.telemetry import ControlMetrics

ACCOUNT = "supervisor-middleware"


def operator_kubeconfig(plane: ControlPlane, namespace: str, directory: Path) -> Path:
    """Grant the operator's rights to its ServiceAccount in `namespace`; a kubeconfig with that account's token."""
    plane.kubectl("apply", "-f", "-", input=operator_rbac(namespace))
    document = yaml.safe_load(plane.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": plane.token_for(ACCOUNT, namespace)}
    path = directory / f"{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@dataclass(slots=True, kw_only=True)
class Running:
    """A source that follows the cluster."""

    source: ClusterSource
    api: ClusterApi
    metrics: ControlMetrics
    changes: list[float] = field(default_factory=list)

    async def until(self, condition: Callable[[Snapshot], bool], *, seconds: float = 10.0) -> Snapshot:
        """The first snapshot for which `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition(snapshot := await self.source.snapshot()):
            assert time.monotonic() < deadline, f"it never came true; the last snapshot was {snapshot}"
            await asyncio.sleep(0.01)
        return snapshot


@asynccontextmanager
async def running(
    kubeconfig: Path, *, list_interval: timedelta = timedelta(seconds=30), silence: timedelta = SILENCE
) -> AsyncIterator[Running]:
    """Follow the cluster with lists and watches, as the operator does; synced on entry unless rights are missing."""
    metrics, changes, stop = ControlMetrics(), list[float](), asyncio.Event()
    async with await connect(kubeconfig) as api:
        source = ClusterSource(
            api, metrics=metrics, changed=lambda: changes.append(time.monotonic()), list_interval=list_interval
        )
        tasks = [
            asyncio.create_task(source.run()),
            asyncio.create_task(keep_watching(source, credentials=api.credentials, stop=stop, silence=silence)),
        ]
        try:
            yield Running(source=source, api=api, metrics=metrics, changes=changes)
        finally:
            stop.set()
            tasks[0].cancel()
            await asyncio.wait(tasks)
            if error := tasks[1].exception():
                raise error


async def apply(plane: ControlPlane, *objects: dict[str, Any]) -> list[dict[str, Any]]:
    """Apply objects as the administrator; what the API server made of them."""
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    done = await asyncio.to_thread(
        plane.kubectl, "apply", "--server-side", "-f", "-", "--output=json", input=manifest
    )
    made = json.loads(done.stdout)
    items: list[dict[str, Any]] = made["items"] if made["kind"] == "List" else [made]
    return items


async def kubectl(plane: ControlPlane, *arguments: str) -> str:
    """Run kubectl as the administrator without holding up the loop."""
    return (await asyncio.to_thread(plane.kubectl, *arguments)).stdout


def a_pod(name: str, *, namespace: str, sandbox: str | None = None, account: str = "default") -> dict[str, Any]:
    """A Pod; a sandbox if it gets a name for one."""
    labels = {} if sandbox is None else {SANDBOX_LABEL: sandbox}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "none"}], "serviceAccountName": account},
    }


def a_policy(name: str, *, namespace: str) -> dict[str, Any]:
    """A SandboxPolicy as somebody types it."""
    entry = {"middleware": "acme/redactor", "endpoints": {"include": ["*.example.com"]}}
    return {
        "apiVersion": API_VERSION,
        "kind": "SandboxPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"sandboxSelector": {}, "networkMiddlewares": {"redact": entry}},
    }


def a_registration(name: str, **spec: Any) -> dict[str, Any]:
    """A SupervisorMiddleware as somebody types it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "SupervisorMiddleware",
        "metadata": {"name": name},
        "spec": {"grpcEndpoint": "https://redactor.acme.svc:8443", "maxBodyBytes": 65536, **spec},
    }

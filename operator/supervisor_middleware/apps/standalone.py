"""`smw standalone`: the control plane over a folder. The same parts as in a cluster; no mock.

State (CA, join tokens, revisions, status) lives in one directory; two of us cannot share it.
"""

import asyncio
import contextlib
import secrets
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.apps.control_plane import ControlPlane, Parts
from supervisor_middleware.apps.farewells import Farewells
from supervisor_middleware.apps.health import Probes, serving_health
from supervisor_middleware.apps.joins import Joins
from supervisor_middleware.apps.replica import Replica
from supervisor_middleware.apps.root_facts import LeaderFacts
from supervisor_middleware.apps.root_keeper import RootKeeper, rotation_rules
from supervisor_middleware.audit.sink import JsonLinesSink
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.violation import Report
from supervisor_middleware.pki.rotation_files import RotationFiles
from supervisor_middleware.settings import StandaloneSettings
from supervisor_middleware.sources.folder import FolderSource
from supervisor_middleware.sources.local_access import LocalAccess, LocalEndpoint, remove_endpoint, write_endpoint
from supervisor_middleware.sources.state import StateStore
from supervisor_middleware.telemetry import ControlMetrics

NAMESPACE: Final = "standalone"
"""Stands in the operator's SPIFFE ID, where a cluster has its namespace."""
_log = structlog.get_logger(__name__)


class _Told:
    """The folder, with what is wrong in its files told: in the log, and beside the statuses."""

    def __init__(self, source: FolderSource, store: StateStore) -> None:
        self._source, self._store = source, store
        self._told = Report()

    async def snapshot(self) -> Snapshot:
        """What the folder says now."""
        snapshot = await self._source.snapshot()
        known = set(self._told.violations)
        for violation in snapshot.problems.violations:
            if violation not in known:
                _log.error("a file cannot be used as it is", file=str(violation.subject), problem=str(violation))
        self._told = snapshot.problems
        self._store.show(snapshot.problems)
        return snapshot


async def run_standalone(folder: Path, settings: StandaloneSettings) -> None:
    """Run until cancelled.

    Raises:
        InvalidInput: the folder, the state directory or a setting is no good; says what to do.
        Unavailable: another control plane has the state directory, or an address is taken.
    """
    if not await asyncio.to_thread(folder.exists):
        raise InvalidInput(f"{folder}: no such folder; it holds registrations, policies and sandboxes as YAML")
    roots = RotationFiles(
        settings.state,
        trust_domain=settings.trust_domain,
        root_lifetime=settings.root_lifetime,
        leaf_lifetime=settings.leaf_lifetime,
        supplied=settings.ca_dir,
    )
    rotation = roots.load_or_create(now=utc_now()).rotation
    sink = JsonLinesSink(
        settings.audit_file or settings.state / "audit.jsonl",
        product_version=version("supervisor-middleware"),
        device="standalone",
        now=utc_now,
    )
    async with StateStore(settings.state) as store, contextlib.AsyncExitStack() as stack:
        stack.callback(sink.close)
        folder_source = FolderSource((folder,), state=store, now=utc_now)
        source = _Told(folder_source, store)
        snapshot = await source.snapshot()
        await store.publish_bundle(rotation.roots.bundle, namespaces=frozenset())
        replica = Replica(settings, namespace=NAMESPACE, rotation=rotation, metrics=ControlMetrics())
        stack.push_async_callback(replica.aclose)
        farewells = Farewells()
        stack.push_async_callback(farewells.aclose)
        joins = Joins(settings.state, snapshot=folder_source.snapshot, emit=sink.emit)
        token = secrets.token_urlsafe(32)
        control_plane = ControlPlane(
            Parts(
                replica=replica,
                source=source,
                store=store,
                reviewer=joins,
                access=LocalAccess(token=token),
                epoch=max(snapshot.highest_epoch + 1, int(time.time())),
                emit=sink.emit,
                farewells=farewells,
                stands=joins.stands,
                has_joined=joins.has_joined,
            )
        )
        keeper = RootKeeper(replica=replica, roots=roots, emit=sink.emit, rules=rotation_rules(settings))
        facts = LeaderFacts(
            replica=replica,
            source=folder_source,
            publisher=store,
            supervisors=control_plane.discovery,
            possession=control_plane.possession,
            check=lambda: None,
        )
        stack.push_async_callback(facts.aclose)
        stack.enter_context(keeper.leading(facts))
        probes = Probes(
            alive=lambda: None,
            ready=control_plane.readiness,
            metrics=lambda: replica.render_metrics(control_plane.discovery.states()),
        )
        async with (
            serving_health(probes, host=settings.host, port=settings.health_port),
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(replica.identity.keep_fresh(sink.emit))
            tasks.create_task(keeper.run())
            tasks.create_task(control_plane.run())
            tasks.create_task(joins.follow(control_plane.discovery.revise))
            tasks.create_task(_follow(folder_source, control_plane))
            tasks.create_task(_open_to_administrators(control_plane, settings, token=token))


async def _open_to_administrators(control_plane: ControlPlane, settings: StandaloneSettings, *, token: str) -> None:
    """Tell `smw status` where we answer, as long as we do."""
    await control_plane.started.wait()
    host = settings.host if settings.host not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104 - what is bound
    endpoint = LocalEndpoint(address=f"{host}:{control_plane.enrollment_port}", token=token)
    await asyncio.to_thread(write_endpoint, settings.state, endpoint)
    try:
        await asyncio.Event().wait()
    finally:
        remove_endpoint(settings.state)


async def _follow(source: FolderSource, control_plane: ControlPlane) -> None:
    async for _ in source.changes(asyncio.Event()):
        _log.info("the folder changed")
        control_plane.reconciler.request()

"""`smw operator`: one replica of the operator over a cluster.

Every replica watches and reviews admissions. One leads, by a Lease: it alone reconciles and serves supervisors. It
asks the clock before each write and each word to a supervisor, and becomes a follower when its lease is lost, in the
same process: its webhook, which knows the cluster and has services' answers, goes on.

Order of a start: the API server is asked for the CA and for every kind; reviews are answered and the election entered
only with a complete view; the epoch of a term is above everything persisted.
"""

import asyncio
import contextlib
import socket
import uuid
from importlib.metadata import version
from typing import Final

import structlog

from supervisor_middleware.apps.clock import uninterrupted, utc_now
from supervisor_middleware.apps.control_plane import ControlPlane, Parts
from supervisor_middleware.apps.farewells import Farewells
from supervisor_middleware.apps.fencing import LeadersStore
from supervisor_middleware.apps.health import Probes, serving_health
from supervisor_middleware.apps.replica import Replica
from supervisor_middleware.apps.root_facts import LeaderFacts
from supervisor_middleware.apps.root_keeper import RootKeeper, rotation_rules
from supervisor_middleware.apps.webhook_service import WebhookService
from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.audit.sink import JsonLinesSink
from supervisor_middleware.control.election import Election, Leadership
from supervisor_middleware.distribution.inspection import AUDIENCE as STATUS_AUDIENCE
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.handlers import keep_watching
from supervisor_middleware.pki.rotation_record import StoredRotation
from supervisor_middleware.settings import OperatorSettings
from supervisor_middleware.sources.cluster import ClusterSource
from supervisor_middleware.sources.cluster_access import ClusterAccess
from supervisor_middleware.sources.cluster_api import ClusterApi, connect
from supervisor_middleware.sources.cluster_authority import ClusterAuthority, Lifetimes
from supervisor_middleware.sources.cluster_lease import LEASE, ClusterLease
from supervisor_middleware.sources.cluster_slice import LeaderSlice
from supervisor_middleware.sources.cluster_tokens import PodTokenReviewer
from supervisor_middleware.telemetry import ControlMetrics

_RETRY: Final = 2.0
_SLICE_INTERVAL: Final = 30.0
"""How often the EndpointSlice is written again: somebody may have changed or deleted it."""

_log = structlog.get_logger(__name__)


async def run_operator(settings: OperatorSettings) -> None:
    """Run until cancelled.

    Raises:
        InvalidInput: the kubeconfig, the CA Secret or a setting is no good; says what to do.
        Unavailable: an address is taken, or an operator of a newer epoch leads.
    """
    # The Lease has a connection of its own: it must not wait where a thousand statuses do, or are throttled.
    async with await connect(settings.kubeconfig) as api, await connect(settings.kubeconfig) as apart:
        await _Operator(settings, api, lease=ClusterLease(apart, namespace=settings.namespace)).run()


class _Operator:
    def __init__(self, settings: OperatorSettings, api: ClusterApi, *, lease: ClusterLease) -> None:
        self._settings, self._api, self._lease = settings, api, lease
        self._metrics = ControlMetrics()
        self._replica: Replica | None = None
        self._control_plane: ControlPlane | None = None
        self._webhook: WebhookService | None = None
        self._overtaken_by = 0
        self._farewells = Farewells()
        self._instance = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._source = ClusterSource(api, metrics=self._metrics, changed=self._request)
        self._authorities = ClusterAuthority(
            api,
            namespace=settings.namespace,
            trust_domain=settings.trust_domain,
            lifetimes=Lifetimes(root=settings.root_lifetime, leaf=settings.leaf_lifetime),
        )
        self._sink = JsonLinesSink(
            settings.audit_file,
            product_version=version("supervisor-middleware"),
            device=socket.gethostname(),
            now=utc_now,
        )

    async def run(self) -> None:
        """Watch and review for ever; lead whenever it is our turn."""
        settings = self._settings
        probes = Probes(alive=self._source.alive, ready=self._readiness, metrics=self._render_metrics)
        async with (
            contextlib.AsyncExitStack() as stack,
            serving_health(probes, host=settings.host, port=settings.health_port),
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._source.run())
            tasks.create_task(keep_watching(self._source, credentials=self._api.credentials, stop=asyncio.Event()))
            stored = await self._authority()
            replica = Replica(settings, namespace=settings.namespace, rotation=stored.rotation, metrics=self._metrics)
            self._replica = replica
            stack.push_async_callback(replica.aclose)
            stack.push_async_callback(self._farewells.aclose)
            tasks.create_task(replica.identity.keep_fresh(self._sink.emit))
            keeper = RootKeeper(
                replica=replica, roots=self._authorities, emit=self._sink.emit, rules=rotation_rules(settings)
            )
            tasks.create_task(keeper.run())
            tasks.create_task(self._serve_webhook(replica))
            await self._election().run(lambda leadership: self._lead(replica, leadership, keeper))

    def _election(self) -> Election:
        return Election(
            self._lease,
            identity=self._instance,
            monotonic=uninterrupted,
            now=utc_now,
            highest_epoch=self._highest_epoch,
        )

    async def _lead(self, replica: Replica, leadership: Leadership, keeper: RootKeeper) -> None:
        """One term; returns when a newer operator has overtaken us."""
        api = self._api.guarded(leadership.check)
        store = LeadersStore(
            api,
            epoch=leadership.epoch,
            source=self._source,
            namespace=self._settings.namespace,
            instance=self._instance,
            now=utc_now,
        )
        await keeper.catch_up()
        replica.forget_descriptions()
        self._control_plane = control_plane = ControlPlane(
            Parts(
                replica=replica,
                source=self._source,
                store=store,
                reviewer=PodTokenReviewer(api, audience=self._settings.audience),
                access=ClusterAccess(api, audience=STATUS_AUDIENCE),
                epoch=leadership.epoch,
                emit=self._sink.emit,
                leads=leadership.is_held,
                farewells=self._farewells,
            )
        )
        facts = LeaderFacts(
            replica=replica,
            source=self._source,
            publisher=store,
            supervisors=control_plane.discovery,
            possession=control_plane.possession,
            check=leadership.check,
        )
        self._metrics.leader.set(1)
        self._tell(ChangeKind.LEADERSHIP_ACQUIRED)
        try:
            async with contextlib.aclosing(facts), asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(control_plane.run()),
                    tasks.create_task(self._keep_slice(api, control_plane)),
                ]
                with keeper.leading(facts):
                    self._overtaken_by = await store.until_overtaken()
                for task in working:
                    task.cancel()
        finally:
            self._control_plane = None
            self._metrics.leader.set(0)
            self._tell(ChangeKind.LEADERSHIP_LOST)
            replica.forget_descriptions()

    def _tell(self, kind: ChangeKind) -> None:
        self._sink.emit(Changed(kind=kind, subject=f"Lease {self._settings.namespace}/{LEASE}"))

    async def _keep_slice(self, api: ClusterApi, control_plane: ControlPlane) -> None:
        """Have supervisors find us, once they are served."""
        settings = self._settings
        if settings.pod_ip is None:
            return
        await control_plane.started.wait()
        ports = {"enrollment": control_plane.enrollment_port, "discovery": control_plane.discovery_port}
        leader = LeaderSlice(
            api,
            namespace=settings.namespace,
            service=settings.leader_service,
            address=settings.pod_ip,
            ports=ports,
        )
        while True:
            try:
                await leader.publish()
            except SupervisorMiddlewareError as error:
                _log.warning("supervisors cannot be told yet who leads", reason=str(error))
                await asyncio.sleep(_RETRY)
            else:
                await asyncio.sleep(_SLICE_INTERVAL)

    def _render_metrics(self) -> bytes:
        replica, control_plane = self._replica, self._control_plane
        if replica is None:
            return self._metrics.render()
        return replica.render_metrics({} if control_plane is None else control_plane.discovery.states())

    def _readiness(self) -> str | None:
        """Every replica reviews admissions, so that is what ready means; who leads is a metric."""
        if self._webhook is not None and self._webhook.is_reviewing:
            return None
        return self._source.missing() or "there is no CA, or no trusted certificate for the webhook yet"

    def _request(self) -> None:
        if self._control_plane is not None:
            self._control_plane.reconciler.request()

    async def _authority(self) -> StoredRotation:
        while True:
            try:
                return await self._authorities.load_or_create(now=utc_now())
            except Unavailable as error:
                _log.warning("the CA cannot be read yet", reason=str(error))
            await asyncio.sleep(_RETRY)

    async def _highest_epoch(self) -> int | None:
        """Of everything persisted, also of what fenced us off; None until all of it is known."""
        with contextlib.suppress(Unavailable):
            snapshot = await self._source.snapshot()
            if not snapshot.unknown:
                return max(snapshot.highest_epoch, self._overtaken_by)
        return None

    async def _serve_webhook(self, replica: Replica) -> None:
        settings = self._settings
        while await self._highest_epoch() is None:  # noqa: ASYNC110 - the source tells of changes, not of completeness
            await asyncio.sleep(0.1)
        self._webhook = WebhookService(settings, self._api, source=self._source, replica=replica)
        await self._webhook.run()

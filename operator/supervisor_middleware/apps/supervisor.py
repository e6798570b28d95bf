"""`smw supervisor`: identity, generations and the chain wired behind Envoy.

Order of a start: last-known-good from disk is served before any contact with the operator; Envoy accepts traffic
only once the processor answers; a supervisor that was never configured answers, with refusals.
"""

import asyncio
import contextlib
import random
import socket
import time
import uuid
from collections.abc import Iterable
from datetime import timedelta
from importlib.metadata import version
from typing import Final

import structlog

from supervisor_middleware.apps.clock import SystemClock, utc_now
from supervisor_middleware.apps.health import Probes, serve_health
from supervisor_middleware.apps.sandbox_identity import addresses, identity_of, trust_of
from supervisor_middleware.apps.scratch import scratch_directory
from supervisor_middleware.audit.events import Bypassed, Event, Failed, Invoked
from supervisor_middleware.audit.sink import JsonLinesSink
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.middleware.builtins import BUILTINS
from supervisor_middleware.pki.files import make_directory
from supervisor_middleware.pki.spiffe import SpiffeId, supervisor_id
from supervisor_middleware.settings import SupervisorSettings
from supervisor_middleware.supervisor.announcements import Announcer
from supervisor_middleware.supervisor.connections import Pool
from supervisor_middleware.supervisor.describe import GrpcDescriber
from supervisor_middleware.supervisor.envoy import EnvoyProcess
from supervisor_middleware.supervisor.envoy_config import (
    DynamicForward,
    FixedUpstream,
    ProxyConfig,
    TcpAddress,
    UnixAddress,
)
from supervisor_middleware.supervisor.ext_proc import ExtProcServer, Processor, RequestIdentity
from supervisor_middleware.supervisor.keeper import Keeper
from supervisor_middleware.supervisor.keeping import Surroundings
from supervisor_middleware.supervisor.persistence import Persistence
from supervisor_middleware.supervisor.preparation import Preparer
from supervisor_middleware.supervisor.record import Defect
from supervisor_middleware.supervisor.runtime import Evaluator, Runtime
from supervisor_middleware.supervisor.store import Store, open_store
from supervisor_middleware.supervisor.subscriber import Operator, Subscriber
from supervisor_middleware.telemetry import SupervisorMetrics

_DRAIN: Final = timedelta(seconds=5)
_log = structlog.get_logger(__name__)


async def run_supervisor(settings: SupervisorSettings) -> None:
    """Run until cancelled.

    Raises:
        InvalidInput: a setting or a file is no good; names it.
        Unavailable: an address is taken, Envoy does not start, or another supervisor has the state directory.
    """
    owner = supervisor_id(settings.trust_domain, namespace=settings.namespace, sandbox=settings.sandbox)
    make_directory(settings.state)
    store = open_store(settings.state / "generation", owner=str(owner))
    with contextlib.closing(store):
        await _Supervisor(settings, owner=owner, store=store).run()


class _Supervisor:
    def __init__(self, settings: SupervisorSettings, *, owner: SpiffeId, store: Store) -> None:
        clock, draw = SystemClock(), random.random
        self._settings = settings
        self._store = store
        self._metrics = SupervisorMetrics()
        self._sink = JsonLinesSink(
            settings.audit_file,
            product_version=version("supervisor-middleware"),
            device=f"{settings.namespace}/{settings.sandbox}",
            now=utc_now,
        )
        self._runtime = Runtime()
        self._pool = Pool()
        trust = trust_of(settings, own=settings.state / "trust.pem", audit=self._sink.emit)
        announcer = Announcer(subject=str(owner), audit=self._sink.emit)
        self._persistence = Persistence(store, clock=clock, random=draw)
        self._identity = identity_of(
            settings, directory=settings.state / "identity", trust=trust, audit=self._sink.emit
        )
        self._keeper = Keeper(
            Surroundings(
                runtime=self._runtime,
                preparation=Preparer(
                    pool=self._pool,
                    describer=GrpcDescriber(),
                    evaluator=Evaluator(builtins=BUILTINS, clock=time.monotonic),
                ),
                saving=self._persistence,
                credentials=self._identity.credentials,
                trust_bundle_digest=trust.digest,
                announcer=announcer,
                clock=clock,
                random=draw,
                version=version("supervisor-middleware"),
            )
        )
        self._subscriber = Subscriber(
            Operator(
                addresses=addresses(settings.operators, settings.discovery_port),
                trust_domain=settings.trust_domain,
                trust=trust,
            ),
            following=self._keeper,
            speaking=announcer,
            identity=self._identity,
            clock=clock,
            random=draw,
        )

    async def run(self) -> None:
        """Restore, serve, follow."""
        self._identity.load()
        await self._keeper.restore(self._store.load())
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._pool.close)
            stack.callback(self._runtime.stop)
            stack.callback(self._sink.close)
            probes = Probes(alive=lambda: None, ready=self._readiness, metrics=self._render_metrics)
            health = await serve_health(probes, host=self._settings.health_host, port=self._settings.health_port)
            stack.push_async_callback(health.cleanup)
            await self._serve_traffic(stack)
            async with asyncio.TaskGroup() as tasks:
                for loop in (self._identity, self._keeper, self._persistence, self._subscriber):
                    tasks.create_task(loop.run())

    async def _serve_traffic(self, stack: contextlib.AsyncExitStack) -> None:
        listen = _address(self._settings.listen)
        _require_free(listen)
        # Ours alone: whoever reaches the socket decides what leaves.
        directory = stack.enter_context(scratch_directory())
        processor = Processor(
            self._runtime,
            identity=RequestIdentity(
                sandbox_id=f"{self._settings.namespace}/{self._settings.sandbox}",
                new_request_id=lambda: str(uuid.uuid4()),
            ),
            record=self._record,
        )
        server = ExtProcServer(processor, address=UnixAddress(str(directory / "processor.sock")))
        address = await server.start()
        stack.push_async_callback(server.stop, _DRAIN)
        upstream = self._settings.upstream
        envoy = EnvoyProcess(
            ProxyConfig(
                listen=listen,
                processor=address,
                upstream=DynamicForward() if upstream is None else FixedUpstream(_address(upstream)),
            ),
            directory=directory / "envoy",
        )
        await envoy.start()
        stack.push_async_callback(envoy.stop)
        _log.info("accepting requests", listen=str(await envoy.listening()), is_configured=self._runtime.is_ready)

    def _record(self, events: Iterable[Event]) -> None:
        for event in events:
            self._sink.emit(event)
            match event:
                case Invoked():
                    self._metrics.stage.labels(event.decision.value).observe(event.latency.total_seconds())
                case Failed():
                    self._metrics.stage.labels("failed").observe(event.latency.total_seconds())
                case Bypassed():
                    self._metrics.stage.labels("bypassed").observe(event.latency.total_seconds())
                    self._metrics.bypass.labels(event.code.value).inc()
                case _:
                    pass

    def _readiness(self) -> str | None:
        return None if self._runtime.is_ready else "never configured: no known-good generation is served"

    def _render_metrics(self) -> bytes:
        metrics = self._metrics
        metrics.configured.set(self._runtime.is_ready)
        metrics.waiting.set(self._keeper.is_waiting)
        metrics.connected.set(self._subscriber.is_connected)
        metrics.saved.set(self._persistence.is_saved)
        for defect in Defect:
            metrics.state_defect.labels(defect.value).set(defect is self._keeper.defect)
        return metrics.render()


def _address(text: str) -> TcpAddress:
    host, _, port = text.rpartition(":")
    return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))


def _require_free(address: TcpAddress) -> None:
    """Envoy would say it at length, and would share the port with another Envoy of the same user."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {error.strerror} (proxy: --listen or SMW_LISTEN)") from error

"""`smw operator`: the control plane over a cluster, with the admission webhook.

Order of a start: the API server is asked for the CA and for every kind; the epoch is above everything persisted;
supervisors and reviews are served only from a complete view.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
import time
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import structlog

from supervisor_middleware.apps.clock import until_renewal, utc_now
from supervisor_middleware.apps.control_plane import ControlPlane, Parts
from supervisor_middleware.audit.sink import JsonLinesSink
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.handlers import keep_watching
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.snapshot import Kind, Stored
from supervisor_middleware.pki.authority import Authority, IpAddress
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.settings import OperatorSettings
from supervisor_middleware.sources.cluster import ClusterSource
from supervisor_middleware.sources.cluster_api import ClusterApi, connect
from supervisor_middleware.sources.cluster_authority import ClusterAuthority
from supervisor_middleware.sources.cluster_kinds import WATCHED
from supervisor_middleware.sources.cluster_store import ClusterStore, Fenced
from supervisor_middleware.sources.cluster_tokens import PodTokenReviewer
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.webhook import Webhook, serve

_RETRY: Final = 2.0

_log = structlog.get_logger(__name__)


async def run_operator(settings: OperatorSettings) -> None:
    """Run until cancelled.

    Raises:
        InvalidInput: the kubeconfig, the CA Secret or a setting is no good; says what to do.
        Unavailable: an address is taken, or an operator of a newer epoch leads.
    """
    async with await connect(settings.kubeconfig) as api:
        await _Operator(settings, api).run()


class LeadersStore(ClusterStore):
    """The store of an operator that leads, which learns here when a newer one does."""

    def __init__(self, api: ClusterApi, *, epoch: int, **options: Any) -> None:
        """As `ClusterStore`; `epoch` is the one we lead with."""
        super().__init__(api, **options)
        self._reader, self._epoch = api, epoch
        self._overtaken: asyncio.Queue[Fenced] = asyncio.Queue()

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """As `ClusterStore`; besides, a status that a newer operator wrote ends `until_overtaken`."""
        try:
            await super().write_status(stored, status)
        except Fenced as error:
            # Refused for its epoch, but perhaps that of an old revision: the epoch that stands there decides.
            if await self._epoch_of(stored) > self._epoch:
                self._overtaken.put_nowait(error)
            raise

    async def until_overtaken(self) -> None:
        """Wait until a newer operator has written.

        Raises:
            Fenced: it has. Two must not distribute side by side; the platform starts us again, with a newer epoch.
        """
        raise Fenced(f"{await self._overtaken.get()}: this one steps down")

    async def _epoch_of(self, stored: Stored) -> int:
        subject = stored.subject
        path = WATCHED[Kind(subject.kind)].path(subject.name, namespace=subject.namespace)
        match (await self._reader.get(path)).get("status"):
            case {"accepted": {"epoch": int() as epoch}}:
                return epoch
            case _:
                return 0


class _Operator:
    def __init__(self, settings: OperatorSettings, api: ClusterApi) -> None:
        self._settings, self._api = settings, api
        self._metrics = ControlMetrics()
        self._control_plane: ControlPlane | None = None
        self._source = ClusterSource(api, metrics=self._metrics, changed=self._request)
        self._authorities = ClusterAuthority(api, namespace=settings.namespace, trust_domain=settings.trust_domain)
        self._sink = JsonLinesSink(
            settings.audit_file,
            product_version=version("supervisor-middleware"),
            device=socket.gethostname(),
            now=utc_now,
        )

    async def run(self) -> None:
        """Watch, wait for a complete view, then run the control plane and the webhook."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._source.run())
            tasks.create_task(keep_watching(self._source, credentials=self._api.credentials, stop=asyncio.Event()))
            authority = await self._authority()
            epoch = await self._epoch()
            store = self._store(epoch)
            self._control_plane = control_plane = ControlPlane(self._parts(authority, epoch, store))
            _log.info("this operator leads", epoch=epoch)
            self._metrics.leader.set(1)
            tasks.create_task(store.until_overtaken())
            tasks.create_task(control_plane.run())
            tasks.create_task(self._serve_webhook(control_plane))

    def _store(self, epoch: int) -> LeadersStore:
        return LeadersStore(
            self._api,
            epoch=epoch,
            source=self._source,
            namespace=self._settings.namespace,
            instance=socket.gethostname(),
            now=utc_now,
        )

    def _parts(self, authority: Authority, epoch: int, store: ClusterStore) -> Parts:
        settings = self._settings
        return Parts(
            settings=settings,
            namespace=settings.namespace,
            source=self._source,
            store=store,
            authority=authority,
            reviewer=PodTokenReviewer(self._api, audience=settings.audience),
            epoch=epoch,
            metrics=self._metrics,
            emit=self._sink.emit,
            alive=self._source.alive,
        )

    def _request(self) -> None:
        if self._control_plane is not None:
            self._control_plane.reconciler.request()

    async def _authority(self) -> Authority:
        while True:
            try:
                return await self._authorities.load_or_create(now=utc_now())
            except Unavailable as error:
                _log.warning("the CA cannot be read yet", reason=str(error))
            await asyncio.sleep(_RETRY)

    async def _epoch(self) -> int:
        """Above everything persisted, and above every epoch before now: a reinstall moves forward too."""
        while True:
            with contextlib.suppress(Unavailable):
                snapshot = await self._source.snapshot()
                if not snapshot.unknown:
                    return max(snapshot.highest_epoch + 1, int(time.time()))
            await asyncio.sleep(0.1)

    async def _serve_webhook(self, control_plane: ControlPlane) -> None:
        settings = self._settings
        webhook = Webhook(
            source=self._source,
            catalog=control_plane.reconciler.catalog,
            asker=control_plane.inquirer,
            settings=control_plane.compiler_settings,
            metrics=self._metrics,
            now=utc_now,
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        credentials = await self._trusted_credentials(tls)
        try:
            runner = await serve(webhook, host=settings.host, port=settings.webhook_port, tls=tls)
        except OSError as error:
            address = f"{settings.host}:{settings.webhook_port}"
            problem = os.strerror(error.errno or 0)
            raise Unavailable(f"cannot listen on {address}: {problem} (webhook: SMW_WEBHOOK_PORT)") from error
        _log.info("reviewing admissions", port=settings.webhook_port)
        try:
            while True:
                await until_renewal(credentials)
                credentials = await self._trusted_credentials(tls)
        finally:
            await runner.cleanup()

    async def _trusted_credentials(self, tls: ssl.SSLContext) -> Credentials:
        """Load a fresh serving certificate, and make the API server trust its issuer."""
        addresses, names = _split(self._settings.webhook_names)
        own = f"supervisor-middleware-webhook.{self._settings.namespace}.svc"
        while True:
            try:
                credentials = await self._authorities.webhook_credentials(
                    dns_names=(own, *names), ip_addresses=addresses, now=utc_now()
                )
                _load(tls, credentials)
                await self._authorities.patch_ca_bundle(
                    self._settings.webhook_configuration, credentials.trust_bundle_pem
                )
            except Unavailable as error:
                _log.warning("the webhook has no trusted certificate yet", reason=str(error))
                await asyncio.sleep(_RETRY)
            else:
                return credentials


def _load(tls: ssl.SSLContext, credentials: Credentials) -> None:
    """Into the running server: connections made from now on see it. Python's ssl reads files only."""
    descriptor, name = tempfile.mkstemp(prefix="smw-webhook-")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(credentials.private_key_pem.reveal() + credentials.certificate_chain_pem)
        tls.load_cert_chain(path)
    finally:
        path.unlink()


def _split(names: tuple[str, ...]) -> tuple[tuple[IpAddress, ...], tuple[str, ...]]:
    addresses, hosts = [], []
    for name in names:
        try:
            addresses.append(ip_address(name))
        except ValueError:
            hosts.append(name)
    return tuple(addresses), tuple(hosts)

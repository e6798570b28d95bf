"""The webhook in a replica: its certificate, its server, and the test that the API server asks it."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.apps.replica import Replica
from supervisor_middleware.apps.webhook_certificate import (
    Certificate,
    Leaf,
    Load,
    MountedCertificate,
    OwnCertificate,
    load_into,
)
from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.pki.authority import Authority, IpAddress
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.settings import OperatorSettings
from supervisor_middleware.sources.cluster_api import ClusterApi
from supervisor_middleware.sources.cluster_live import ClusterLive
from supervisor_middleware.sources.cluster_probe import WebhookProbe
from supervisor_middleware.sources.cluster_serving import ServingSecret, WebhookTrust
from supervisor_middleware.telemetry import ControlMetrics, where
from supervisor_middleware.webhook import Clients, Webhook, serve
from supervisor_middleware.webhook.judging import Source

SELF_TEST_INTERVAL: Final = 60.0
CLIENT_CA_INTERVAL: Final = 10.0
_FIRST_SELF_TEST: Final = 5.0

_log = structlog.get_logger(__name__)


class WebhookService:
    """Serves reviews for as long as it runs."""

    def __init__(self, settings: OperatorSettings, api: ClusterApi, *, source: Source, replica: Replica) -> None:
        """`source` has a complete view by now."""
        self._settings, self._api, self._source, self._replica = settings, api, source, replica
        self.is_reviewing = False

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            InvalidInput: the client CA or the Secret of the root is no good; says what to do.
            Unavailable: the port is taken.
        """
        settings, metrics = self._settings, self._replica.metrics
        if settings.webhook_client_names and settings.webhook_client_ca is None:
            raise InvalidInput("names of webhook clients need their CA (SMW_WEBHOOK_CLIENT_CA)")
        tls = server_context(settings.webhook_client_ca)
        certificate = self._certificate(partial(self._load, tls))
        await certificate.start()
        try:
            runner = await serve(
                self._webhook(),
                host=settings.host,
                port=settings.webhook_port,
                tls=tls,
                metrics=metrics,
                now=utc_now,
                clients=Clients(names=frozenset(settings.webhook_client_names)),
            )
        except OSError as error:
            address = f"{settings.host}:{settings.webhook_port}"
            problem = os.strerror(error.errno or 0)
            raise Unavailable(f"cannot listen on {address}: {problem} (webhook: SMW_WEBHOOK_PORT)") from error
        self.is_reviewing = True
        _log.info("reviewing admissions", port=settings.webhook_port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(certificate.keep())
                if settings.webhook_self_test:
                    probe = WebhookProbe(self._api, namespace=settings.namespace)
                    tasks.create_task(keep_testing(probe.problem, metrics))
                if settings.webhook_client_ca is not None:
                    tasks.create_task(keep_client_ca(tls, settings.webhook_client_ca))
        finally:
            await runner.cleanup()

    def _webhook(self) -> Webhook:
        replica = self._replica
        return Webhook(
            source=self._source,
            catalog=replica.catalog,
            asker=replica.reviewer,
            settings=replica.compiler_settings,
            now=utc_now,
            live=ClusterLive(self._api),
            disclosure=self._settings.webhook_disclosure,
            acceptances=replica.acceptances,
        )

    def _certificate(self, load: Load) -> Certificate:
        settings = self._settings
        if settings.webhook_certificate_dir is not None:
            return MountedCertificate(folder=settings.webhook_certificate_dir, load=load)
        addresses, names = _split(settings.webhook_names)
        own = f"supervisor-middleware-webhook.{settings.namespace}.svc"
        return OwnCertificate(
            roots=ServingSecret(
                self._api, namespace=settings.namespace, trust_domain=f"webhook.{settings.trust_domain}"
            ),
            trust=WebhookTrust(self._api, configuration=settings.webhook_configuration),
            load=load,
            tell=self._tell_root,
            leaf=Leaf(dns_names=(own, *names), ip_addresses=addresses, lifetime=settings.leaf_lifetime),
            overlap=settings.webhook_ca_overlap,
        )

    def _load(self, tls: ssl.SSLContext, certificate_chain_pem: bytes, key: SecretBytes) -> None:
        leaf = load_into(tls, certificate_chain_pem, key)
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        self._replica.metrics.certified("webhook", not_before=begin, expires_at=end)
        _log.info("the webhook serves with a new certificate", expires_at=end.isoformat())

    def _tell_root(self, root: Authority) -> None:
        self._replica.metrics.certified("webhook_root", not_before=root.not_before, expires_at=root.expires_at)


def server_context(client_ca: Path | None) -> ssl.SSLContext:
    """TLS of the server; with `client_ca` nobody else completes a handshake.

    Raises:
        InvalidInput: the file is no PEM bundle.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca is not None:
        try:
            tls.load_verify_locations(cafile=client_ca)
        except OSError as error:
            raise InvalidInput(f"{client_ca}: no PEM certificates there (SMW_WEBHOOK_CLIENT_CA)") from error
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


async def keep_client_ca(
    tls: ssl.SSLContext, path: Path, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Trust what is added to the file, for ever; what is taken out of it is trusted until a restart.

    Whoever issues the API server's certificate anew puts the next root beside the present one first.
    """
    before: bytes | None = None
    while True:
        await sleep(CLIENT_CA_INTERVAL)
        try:
            found = await asyncio.to_thread(path.read_bytes)
            if found != before:
                tls.load_verify_locations(cadata=found.decode())
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            if before != b"":
                _log.warning("the CA of webhook clients cannot be read again", file=str(path), problem=where(error))
            before = b""
        else:
            if before is not None and found != before:
                _log.info("the CA of webhook clients was read again", file=str(path))
            before = found


async def keep_testing(
    problem: Callable[[], Awaitable[str | None]],
    metrics: ControlMetrics,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Once a minute, for ever; told in metrics, and in the log when it changes. Readiness does not hear of it."""
    before: str | None = "not tested yet"
    await sleep(_FIRST_SELF_TEST)
    while True:
        found = await problem()
        metrics.webhook_selftest.set(0 if found else 1)
        metrics.webhook_selftest_at.set_to_current_time()
        if found and found != before:
            _log.error("the API server does not ask this webhook", problem=found)
        elif before and not found:
            _log.info("the API server asks this webhook")
        before = found
        await sleep(SELF_TEST_INTERVAL)


def _split(names: tuple[str, ...]) -> tuple[tuple[IpAddress, ...], tuple[str, ...]]:
    addresses, hosts = [], []
    for name in names:
        try:
            addresses.append(ip_address(name))
        except ValueError:
            hosts.append(name)
    return tuple(addresses), tuple(hosts)

"""The certificate authorities of a cluster's operator, each in a Secret of its namespace.

One issues identities; its loss locks every supervisor out, so it is made only where none was ever published. The
other is for the webhook's serving certificate alone, so that neither key is ever good for the other's purpose.
However many replicas start at once, one of each comes out: create, and on conflict read.
"""

import base64
import binascii
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import structlog

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.pki.authority import LEAF_LIFETIME, Authority, IpAddress
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.sources import cluster_bodies as bodies
from supervisor_middleware.sources.cluster_api import ClusterApi, Conflict, NotFound
from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, SECRETS, core_path

CA_SECRET: Final = "supervisor-middleware-ca"  # noqa: S105 - a name
WEBHOOK_SECRET: Final = "supervisor-middleware-webhook"  # noqa: S105 - a name

_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

_log = structlog.get_logger(__name__)


class ClusterAuthority:
    """The Secrets, and the webhook configuration that must trust one of them."""

    def __init__(self, api: ClusterApi, *, namespace: str, trust_domain: str) -> None:
        """`namespace` is the operator's own."""
        self._api, self._namespace, self._trust_domain = api, namespace, trust_domain

    async def load_or_create(self, *, now: datetime) -> Authority:
        """The CA of identities; a new one only where there never was one. One that somebody supplied is taken.

        Raises:
            InvalidInput: the Secret cannot serve; or it is missing although its bundle was published (a new CA would
                lock every supervisor out). Says what to do.
            Unavailable: the API server is.
        """
        # In this order: whoever publishes has stored the CA before, so a bundle seen means a CA that is there.
        is_published = await self._exists(CONFIG_MAPS, bodies.TRUST_BUNDLE)
        secret = await self._secret(CA_SECRET)
        if secret is None and is_published:
            raise InvalidInput(
                f"Secret {self._namespace}/{CA_SECRET} is missing, but ConfigMap {bodies.TRUST_BUNDLE} was "
                "published: restore the Secret from a backup (or delete that ConfigMap to begin anew; every "
                "supervisor must then enrol again)"
            )
        if secret is None:
            secret = await self._create(CA_SECRET, trust_domain=self._trust_domain, now=now)
        return self._authority(CA_SECRET, secret, trust_domain=self._trust_domain, now=now)

    async def webhook_credentials(
        self,
        *,
        dns_names: Iterable[str],
        ip_addresses: Iterable[IpAddress] = (),
        now: datetime,
        lifetime: timedelta = LEAF_LIFETIME,
    ) -> Credentials:
        """A fresh serving certificate of the webhook; every replica has its own, of the one CA in the Secret.

        The bundle in it is what `patch_ca_bundle` takes. Call it again at the leaf's half-life.

        Raises:
            InvalidInput: the Secret cannot serve (delete it, and a new one is made); or a name is no DNS name.
            Unavailable: the API server is.
        """
        trust_domain = f"webhook.{self._trust_domain}"
        secret = await self._secret(WEBHOOK_SECRET)
        if secret is None:
            secret = await self._create(WEBHOOK_SECRET, trust_domain=trust_domain, now=now)
        authority = self._authority(WEBHOOK_SECRET, secret, trust_domain=trust_domain, now=now)
        return authority.issue_server(dns_names=dns_names, ip_addresses=ip_addresses, now=now, lifetime=lifetime)

    async def patch_ca_bundle(self, configuration_name: str, pem: bytes) -> None:
        """Make the API server trust the webhook: `caBundle` of each webhook, and no other field.

        A configuration that is absent is logged: the chart (or `webhook.enabled`) decides whether there is one.

        Raises:
            Unavailable: the API server is.
        """
        path = f"{_CONFIGURATIONS}/{configuration_name}"
        try:
            configuration = await self._api.get(path)
            if _trusts(configuration, pem):
                return
            await self._api.apply(path, bodies.ca_bundle_patch(configuration, pem))
        except (NotFound, Conflict):
            _log.warning(
                "no ValidatingWebhookConfiguration: objects are admitted without the webhook's checks",
                name=configuration_name,
            )

    async def _exists(self, collection: str, name: str) -> bool:
        try:
            await self._api.get(core_path(collection, namespace=self._namespace, name=name))
        except NotFound:
            return False
        return True

    async def _secret(self, name: str) -> ParsedJson | None:
        try:
            return await self._api.get(core_path(SECRETS, namespace=self._namespace, name=name))
        except NotFound:
            return None

    async def _create(self, name: str, *, trust_domain: str, now: datetime) -> ParsedJson:
        made = Authority.create(trust_domain=trust_domain, now=now)
        body = bodies.tls_secret_body(
            name, namespace=self._namespace, certificate_pem=made.certificate_pem, key_pem=made.private_key_pem
        )
        try:
            created = await self._api.create(core_path(SECRETS, namespace=self._namespace), body)
        except Conflict:
            return await self._api.get(core_path(SECRETS, namespace=self._namespace, name=name))
        _log.info("made a new certificate authority", secret=f"{self._namespace}/{name}")
        return created

    def _authority(self, name: str, secret: ParsedJson, *, trust_domain: str, now: datetime) -> Authority:
        data = secret.get("data") or {}
        try:
            certificate = base64.b64decode(data["tls.crt"], validate=True)
            key = SecretBytes(base64.b64decode(data["tls.key"], validate=True))
            return Authority.load(certificate, key, trust_domain=trust_domain, now=now)
        except (KeyError, TypeError, binascii.Error):
            raise InvalidInput(f"Secret {self._namespace}/{name}: needs tls.crt and tls.key") from None
        except InvalidInput as error:
            raise InvalidInput(f"Secret {self._namespace}/{name}: {error}") from None


def _trusts(configuration: ParsedJson, pem: bytes) -> bool:
    bundle = base64.b64encode(pem).decode("ascii")
    return all((w.get("clientConfig") or {}).get("caBundle") == bundle for w in configuration.get("webhooks") or ())

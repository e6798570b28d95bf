"""The certificate authority of identities of a cluster's operator, in a Secret of its namespace.

Its loss locks every supervisor out, so it is made only where none was ever published. However many replicas start
at once, one comes out: create, and on conflict read. The webhook's serving certificates are of another one
(`cluster_serving`), so that neither key is ever good for the other's purpose.
"""

import base64
import binascii
from datetime import datetime
from typing import Final

import structlog

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.sources import cluster_bodies as bodies
from supervisor_middleware.sources.cluster_api import ClusterApi, Conflict, NotFound
from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, SECRETS, core_path

CA_SECRET: Final = "supervisor-middleware-ca"  # noqa: S105 - a name

_log = structlog.get_logger(__name__)


class ClusterAuthority:
    """The Secret."""

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

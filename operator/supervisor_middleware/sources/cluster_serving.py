"""The roots of the webhook's serving certificates, in a Secret, and the webhook configurations that must trust them.

No replica leads here: whoever finds that it is time writes the next stage, and of several who do so at once one wins
by resourceVersion; the others read what it wrote.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.root_parts import CURRENT, Parts, parts_of, succession_from
from supervisor_middleware.pki.succession import MAX_RETIRED, ROOT_LIFETIME, Succession, split_roots
from supervisor_middleware.sources import cluster_bodies as bodies
from supervisor_middleware.sources.cluster_api import ClusterApi, Conflict, NotFound
from supervisor_middleware.sources.cluster_kinds import SECRETS, core_path

WEBHOOK_SECRET: Final = "supervisor-middleware-webhook"  # noqa: S105 - a name

_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSuccession:
    """A stage, and the version of the Secret that holds it or (`is_stored` False) what it is to replace."""

    succession: Succession
    version: str
    is_stored: bool = True


class ServingSecret:
    """The Secret `supervisor-middleware-webhook`."""

    def __init__(self, api: ClusterApi, *, namespace: str, trust_domain: str) -> None:
        """`trust_domain` is the webhook's own, so that neither key is ever good for the other's purpose."""
        self._api, self._namespace, self._trust_domain = api, namespace, trust_domain
        self._path = core_path(SECRETS, namespace=namespace, name=WEBHOOK_SECRET)

    async def read(self, *, now: datetime) -> StoredSuccession | None:
        """What the Secret holds; None if there is none.

        Raises:
            InvalidInput: it cannot serve; delete it, and a new one is made.
            Unavailable: the API server is.
        """
        try:
            body = await self._api.get(self._path)
        except NotFound:
            return None
        return self._parse(body, now=now)

    def first(self, *, trusted: tuple[bytes, ...], now: datetime) -> Succession:
        """Of one who knows of nothing before. What is `trusted` now stays so: other replicas may serve by it."""
        made = Authority.create(trust_domain=self._trust_domain, now=now, lifetime=ROOT_LIFETIME)
        return Succession(current=made, retired=trusted[-MAX_RETIRED:])

    async def write(self, succession: Succession, *, over: str | None) -> bool:
        """Create the Secret, or replace the version `over`; False: somebody else was first.

        Raises:
            Unavailable: the API server is.
        """
        body = bodies.tls_secret_body(WEBHOOK_SECRET, namespace=self._namespace, parts=parts_of(succession))
        try:
            if over is None:
                await self._api.create(core_path(SECRETS, namespace=self._namespace), body)
            else:
                body["metadata"]["resourceVersion"] = over
                await self._api.replace(self._path, body)
        except (Conflict, NotFound):
            return False
        return True

    def _parse(self, body: ParsedJson, *, now: datetime) -> StoredSuccession:
        version = str(body["metadata"]["resourceVersion"])
        try:
            parts = bodies.decoded(body)
            if _has_ended(parts, now=now):
                # Nobody trusts it any more, so nobody is to be spared a sudden change.
                return StoredSuccession(succession=self.first(trusted=(), now=now), version=version, is_stored=False)
            succession = succession_from(parts, trust_domain=self._trust_domain, now=now)
        except InvalidInput as error:
            raise InvalidInput(f"Secret {self._namespace}/{WEBHOOK_SECRET}: {error}") from None
        return StoredSuccession(succession=succession, version=version)


class WebhookTrust:
    """`caBundle` of each webhook of one configuration, and no other field of it."""

    def __init__(self, api: ClusterApi, *, configuration: str) -> None:
        """`configuration` is its name."""
        self._api, self._name = api, configuration
        self._path = f"{_CONFIGURATIONS}/{configuration}"
        self._is_missing = False

    async def roots(self) -> tuple[bytes, ...]:
        """What is trusted now by all of its webhooks, or by the first if they differ; what is no PEM is left out.

        Raises:
            Unavailable: the API server is.
        """
        configuration = await self._get()
        bundles = _bundles(configuration) if configuration is not None else []
        try:
            pem = base64.b64decode(bundles[0], validate=True) if bundles else b""
            parse_bundle(pem)
        except (binascii.Error, InvalidInput):
            return ()
        return split_roots(pem)

    async def ensure(self, pem: bytes) -> bool:
        """Have `pem` trusted; whether it was already, or there is no configuration (the chart decides).

        Raises:
            Unavailable: the API server is.
        """
        configuration = await self._get()
        wanted = base64.b64encode(pem).decode("ascii")
        if configuration is None or all(b == wanted for b in _bundles(configuration)):
            return True
        try:
            await self._api.apply(self._path, bodies.ca_bundle_patch(configuration, pem))
        except (NotFound, Conflict):
            return False
        _log.info("caBundle is set", configuration=self._name)
        return False

    async def _get(self) -> ParsedJson | None:
        try:
            configuration = await self._api.get(self._path)
        except NotFound:
            if not self._is_missing:
                _log.warning(
                    "no ValidatingWebhookConfiguration: objects are admitted without the webhook's checks",
                    name=self._name,
                )
            self._is_missing = True
            return None
        self._is_missing = False
        return configuration


def _bundles(configuration: ParsedJson) -> list[str]:
    webhooks = configuration.get("webhooks") or ()
    return [str((w.get("clientConfig") or {}).get("caBundle") or "") for w in webhooks]


def _has_ended(parts: Parts, *, now: datetime) -> bool:
    certificate = parts.get(f"{CURRENT}.crt")
    return certificate is not None and all(c.not_valid_after_utc <= now for c in parse_bundle(certificate))

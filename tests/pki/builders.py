"""Builders that name only what a test is about: an authority, a supervisor's identity, its signing request."""

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from supervisor_middleware.pki.authority import LEAF_LIFETIME, ROOT_LIFETIME, Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.spiffe import SandboxIdentity

TRUST_DOMAIN: Final = "example.test"
NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY: Final = timedelta(days=1)
POD_UID: Final = "0b5e7c1e-7c35-4f6c-9d2e-3f1f1d0c9a77"


def an_authority(
    *, trust_domain: str = TRUST_DOMAIN, now: datetime = NOW, lifetime: timedelta = ROOT_LIFETIME
) -> Authority:
    return Authority.create(trust_domain=trust_domain, now=now, lifetime=lifetime)


def an_identity(*, namespace: str = "team-a", sandbox: str = "coder", pod_uid: str = POD_UID) -> SandboxIdentity:
    return SandboxIdentity(namespace=namespace, sandbox=sandbox, pod_uid=pod_uid)


def supervisor_credentials(
    authority: Authority,
    *,
    identity: SandboxIdentity | None = None,
    now: datetime = NOW,
    lifetime: timedelta = LEAF_LIFETIME,
) -> Credentials:
    key, csr = new_key_and_csr()
    issued = authority.issue_supervisor(csr, identity=identity or an_identity(), now=now, lifetime=lifetime)
    return Credentials(
        certificate_chain_pem=issued.certificate_chain_pem,
        private_key_pem=key,
        trust_bundle_pem=authority.certificate_pem,
    )


def leaf_of(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)

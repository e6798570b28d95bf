"""The CA of identities in a cluster: one however many start, and none made twice."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster_support import apply, kubectl, operator_kubeconfig
from e2e.controlplane.cluster import ControlPlane
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.sources.cluster_api import ClusterApi, connect
from supervisor_middleware.sources.cluster_authority import CA_SECRET, ClusterAuthority
from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE, tls_secret_body, trust_bundle_body

_DOMAIN = "cluster.example"


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def api(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[ClusterApi]:
    async with await connect(operator_kubeconfig(control_plane, namespace, tmp_path)) as opened:
        yield opened


@pytest.fixture
def authority(api: ClusterApi, namespace: str) -> ClusterAuthority:
    return ClusterAuthority(api, namespace=namespace, trust_domain=_DOMAIN)


async def root(authority: ClusterAuthority) -> Authority:
    return (await authority.load_or_create(now=now())).rotation.roots.current


async def test_three_that_start_at_once_end_with_one_authority(api: ClusterApi, namespace: str) -> None:
    three = [ClusterAuthority(api, namespace=namespace, trust_domain=_DOMAIN) for _ in range(3)]
    made = await asyncio.gather(*(one.load_or_create(now=now()) for one in three))
    again = await three[0].load_or_create(now=now())
    assert len({s.rotation.roots.current.certificate_pem for s in (*made, again)}) == 1
    assert len({s.rotation.roots.current.private_key_pem.reveal() for s in (*made, again)}) == 1


async def test_a_ca_that_is_missing_although_its_bundle_was_published_is_not_made_anew(
    control_plane: ControlPlane, namespace: str, authority: ClusterAuthority
) -> None:
    made = await root(authority)
    await apply(control_plane, trust_bundle_body(made.certificate_pem, namespace=namespace))
    assert (await root(authority)).certificate == made.certificate
    await kubectl(control_plane, "delete", "secret", CA_SECRET, f"--namespace={namespace}")
    with pytest.raises(InvalidInput, match="restore the Secret"):
        await authority.load_or_create(now=now())
    await kubectl(control_plane, "delete", "configmap", TRUST_BUNDLE, f"--namespace={namespace}")
    assert (await root(authority)).certificate != made.certificate


async def test_a_ca_that_somebody_supplied_is_taken_if_it_fits(
    control_plane: ControlPlane, namespace: str, authority: ClusterAuthority
) -> None:
    supplied = Authority.create(trust_domain=_DOMAIN, now=now())
    other = Authority.create(trust_domain=_DOMAIN, now=now())

    def secret(key: Authority) -> dict[str, Any]:
        parts = {"tls.crt": supplied.certificate_pem, "tls.key": key.private_key_pem.reveal()}
        return tls_secret_body(CA_SECRET, namespace=namespace, parts=parts)

    await apply(control_plane, secret(supplied))
    assert (await root(authority)).certificate == supplied.certificate
    await kubectl(control_plane, "delete", "secret", CA_SECRET, f"--namespace={namespace}")
    await apply(control_plane, {**secret(supplied), "type": "Opaque", "data": {"tls.crt": "bm9uZQ=="}})
    with pytest.raises(InvalidInput, match=r"supervisor-middleware-ca: needs tls.crt and tls.key"):
        await authority.load_or_create(now=now())
    await kubectl(control_plane, "delete", "secret", CA_SECRET, f"--namespace={namespace}")
    mixed = {**secret(other), "type": "Opaque"}
    await apply(control_plane, mixed)
    with pytest.raises(InvalidInput, match="the private key belongs to another certificate") as refusal:
        await authority.load_or_create(now=now())
    assert "PRIVATE KEY" not in str(refusal.value)

"""The CA of identities in a cluster: one however many start, and none made twice."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster_support import apply, kubectl, operator_kubeconfig
from e2e.controlplane.cluster import ControlPlane
from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.rotation import Cause, Facts, Rules, advance
from supervisor_middleware.pki.rotation_requests import Stage, new_request
from supervisor_middleware.sources.cluster_api import ClusterApi, connect
from supervisor_middleware.sources.cluster_authority import CA_SECRET, ClusterAuthority
from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE, tls_secret_body, trust_bundle_body
from supervisor_middleware.sources.cluster_rotation import request_rotation, rotation_status

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


def nothing() -> None:
    """Whoever may write."""


async def test_of_three_that_begin_a_rotation_at_once_one_wins_and_all_know_the_same(
    api: ClusterApi, namespace: str
) -> None:
    three = [ClusterAuthority(api, namespace=namespace, trust_domain=_DOMAIN) for _ in range(3)]
    seen = [await one.load_or_create(now=now()) for one in three]
    begun = [
        advance(stored.rotation, Facts(), now=now(), rules=Rules(), request=new_request(str(n)))
        for n, stored in enumerate(seen)
    ]
    written = await asyncio.gather(
        *(
            one.write(rotation, over=stored, check=nothing)
            for one, rotation, stored in zip(three, begun, seen, strict=True)
            if rotation is not None
        )
    )
    assert sorted(written) == [False, False, True]
    found = [await one.read(now=now(), known=stored.rotation) for one, stored in zip(three, seen, strict=True)]
    assert len({stored.rotation.roots.bundle for stored in found if stored is not None}) == 1
    assert all(stored is not None and stored.rotation.stage is Stage.PREPARED for stored in found)
    # Whoever is not in office writes nothing.

    def refuse() -> None:
        raise Unavailable("not leading")

    stored = found[0]
    assert stored is not None
    with pytest.raises(Unavailable, match="not leading"):
        await three[0].write(
            stored.rotation.at(Stage.TAINTED, now=now(), cause=Cause.FORCED), over=stored, check=refuse
        )


async def test_what_others_wrote_beside_the_roots_stays(
    control_plane: ControlPlane, namespace: str, authority: ClusterAuthority
) -> None:
    stored = await authority.load_or_create(now=now())
    where = ("secret", CA_SECRET, f"--namespace={namespace}")
    await kubectl(control_plane, "annotate", *where, "middleware.openshell.io/rotate=now", "theirs=kept")
    await kubectl(control_plane, "label", *where, "owner=platform")
    found = await authority.read(now=now(), known=stored.rotation)
    assert found is not None
    assert found.request == new_request("now")
    assert found.changes
    assert await authority.write(found.rotation, over=found, check=nothing)
    again = await authority.read(now=now(), known=found.rotation)
    assert again is not None
    assert not again.changes
    text = await kubectl(
        control_plane, "get", *where, "-o", "jsonpath={.metadata.annotations.theirs} {.metadata.labels.owner}"
    )
    assert text.strip() == "kept platform"


async def test_where_it_stands_is_shown_beside_the_bundle_and_makes_none(
    control_plane: ControlPlane, namespace: str, authority: ClusterAuthority, api: ClusterApi
) -> None:
    with pytest.raises(InvalidInput, match="no operator runs"):
        await rotation_status(api, namespace=namespace)
    with pytest.raises(Unavailable):
        await authority.show({"stage": "steady"}, check=nothing)
    await apply(control_plane, trust_bundle_body(b"pem", namespace=namespace))
    with pytest.raises(InvalidInput, match="says nothing of its root"):
        await rotation_status(api, namespace=namespace)
    await authority.show({"stage": "steady"}, check=nothing)
    await apply(control_plane, trust_bundle_body(b"another", namespace=namespace))
    assert await rotation_status(api, namespace=namespace) == {"stage": "steady"}
    with pytest.raises(Unavailable, match="is missing"):
        await request_rotation(api, new_request("now"), namespace=namespace)

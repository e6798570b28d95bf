"""A Lease and an EndpointSlice as objects: what is read of them, what is written, and whose write wins."""

import copy
from ipaddress import ip_address
from typing import Any

import pytest

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.lease import Lease
from supervisor_middleware.sources.cluster_api import Conflict, NotFound
from supervisor_middleware.sources.cluster_lease import EPOCH_ANNOTATION, ClusterLease
from supervisor_middleware.sources.cluster_slice import LeaderSlice

OURS = Lease(holder="me", renewed="2026-01-01T00:00:00.000000Z", transitions=3, epoch=7)


class Api:
    """One object, with versions."""

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        self.stored, self.version = stored, 1
        self.applied: dict[str, dict[str, Any]] = {}

    async def get(self, path: str) -> dict[str, Any]:
        if self.stored is None:
            raise NotFound(path)
        found = copy.deepcopy(self.stored)
        found["metadata"] = {**found.get("metadata", {}), "resourceVersion": str(self.version)}
        return found

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.stored is not None:
            raise Conflict(path)
        self.stored = body
        return await self.get(path)

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.stored is None:
            raise NotFound(path)
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict(path)
        self.stored, self.version = body, self.version + 1
        return await self.get(path)

    async def apply(self, path: str, body: dict[str, Any]) -> None:
        self.applied[path] = body


def a_lease(api: Api) -> ClusterLease:
    return ClusterLease(api, namespace="smw")  # type: ignore[arg-type]


async def test_what_is_written_is_read() -> None:
    api = Api()
    lease = a_lease(api)
    assert await lease.read() is None
    assert await lease.write(OURS)
    assert await lease.read() == OURS
    assert await lease.write(Lease(holder="", renewed="2026-01-01T00:00:01.000000Z", transitions=3, epoch=7))
    assert api.stored is not None
    assert "holderIdentity" not in api.stored["spec"]
    again = await lease.read()
    assert again is not None
    assert again.holder == ""


async def test_of_two_who_saw_the_same_one_wins() -> None:
    api = Api()
    first, second = a_lease(api), a_lease(api)
    assert await first.read() is await second.read() is None
    assert await first.write(OURS)
    assert not await second.write(OURS)
    await second.read()
    assert await first.write(OURS)
    assert not await second.write(OURS)


async def test_one_that_was_deleted_is_created_once_that_was_seen() -> None:
    api = Api()
    lease = a_lease(api)
    await lease.read()
    await lease.write(OURS)
    api.stored = None
    assert not await lease.write(OURS)
    assert await lease.read() is None
    assert await lease.write(OURS)


async def test_what_others_put_on_it_is_kept_and_acquisition_is_dated() -> None:
    api = Api({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "uid": "u"}, "spec": {}})
    lease = a_lease(api)
    await lease.read()
    await lease.write(OURS)
    later = Lease(holder="me", renewed="2026-01-01T00:00:02.000000Z", transitions=3, epoch=7)
    await lease.write(later)
    assert api.stored is not None
    assert api.stored["metadata"]["labels"] == {"a": "b"}
    assert api.stored["metadata"]["annotations"] == {"c": "d", EPOCH_ANNOTATION: "7"}
    assert (api.stored["spec"]["acquireTime"], api.stored["spec"]["renewTime"]) == (OURS.renewed, later.renewed)


@pytest.mark.parametrize("epoch", ["", "-1", "1e3", "9" * 30, None, "٣"])
async def test_what_a_stranger_wrote_is_no_reason_to_fail(epoch: str | None) -> None:
    annotations = None if epoch is None else {EPOCH_ANNOTATION: epoch}
    spec = {"holderIdentity": 5, "renewTime": None, "leaseDurationSeconds": "x", "leaseTransitions": None}
    lease = await a_lease(Api({"metadata": {"annotations": annotations}, "spec": spec})).read()
    assert lease == Lease(holder="", renewed="", duration=0.0)
    assert await a_lease(Api({"metadata": {}})).read() == lease


async def test_the_api_servers_troubles_are_the_callers() -> None:
    class Away(Api):
        async def get(self, path: str) -> dict[str, Any]:
            raise Unavailable("away")

    with pytest.raises(Unavailable):
        await a_lease(Away()).read()


@pytest.mark.parametrize(("address", "kind"), [("192.0.2.7", "IPv4"), ("2001:db8::7", "IPv6")])
async def test_the_service_leads_to_the_leader_and_owns_the_slice(address: str, kind: str) -> None:
    api = Api({"metadata": {"name": "supervisor-middleware", "uid": "uid-of-service"}})
    leader = LeaderSlice(
        api,  # type: ignore[arg-type]
        namespace="smw",
        service="supervisor-middleware",
        address=ip_address(address),
        ports={"enrollment": 8443, "discovery": 8444},
    )
    await leader.publish()
    (path, body), *_ = api.applied.items()
    assert path == "/apis/discovery.k8s.io/v1/namespaces/smw/endpointslices/supervisor-middleware-leader"
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == "supervisor-middleware"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-of-service"
    assert body["addressType"] == kind
    assert body["endpoints"][0]["addresses"] == [address]
    assert {p["name"]: p["port"] for p in body["ports"]} == {"enrollment": 8443, "discovery": 8444}


async def test_without_the_service_there_is_no_slice() -> None:
    api = Api()
    leader = LeaderSlice(
        api,  # type: ignore[arg-type]
        namespace="smw",
        service="supervisor-middleware",
        address=ip_address("192.0.2.7"),
        ports={},
    )
    await leader.publish()
    await leader.publish()
    assert not api.applied

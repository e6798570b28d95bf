"""A deleted Pod loses access within a minute, whatever it has open or in hand, on a real API server.

The operator reaches its API server through a proxy, which lets it miss what happens.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from e2e.controlplane.cluster import ControlPlane
from e2e.flaky_proxy import FlakyProxy, Gone
from e2e.harness import TRUST_DOMAIN, Installation, a_pod
from e2e.objects import a_policy, an_entry
from e2e.test_resilience_api import point
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.settings import AUDIENCE
from supervisor_middleware.supervisor.enrollment import Enroller, TokenRefused
from supervisor_middleware.supervisor.operator_channel import open_operator_channel
from supervisor_middleware.supervisor.renewal import RenewalRefused, Renewer
from supervisor_middleware.supervisor.trust import TrustBundle
from supervisor_middleware.wire.gen import distribution_pb2 as pb

DISCOVERY = "supervisor_middleware.distribution.v1alpha1.GenerationDiscovery"
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class World:
    """An operator behind a proxy, and a namespace with a policy."""

    installation: Installation
    proxy: FlakyProxy
    namespace: str

    @property
    def plane(self) -> ControlPlane:
        return self.installation.plane

    def sandbox(self, name: str, *, pod: str = "") -> None:
        self.installation.apply(a_pod(pod or name, namespace=self.namespace, sandbox=name))

    def delete(self, pod: str) -> None:
        self.plane.kubectl("delete", "pod", pod, "-n", self.namespace, "--wait=false")

    def enroller(self, folder: Path, name: str, *, pod: str = "") -> Enroller:
        token = self.plane.token_for("default", self.namespace, bound_pod=pod or name, audience=AUDIENCE)
        (folder / f"{name}.token").write_text(token)
        return Enroller(
            addresses=(f"127.0.0.1:{self.installation.enrollment_port}",),
            trust_domain=TRUST_DOMAIN,
            trust=TrustBundle(self.installation.trust_bundle()),
            owner=str(supervisor_id(TRUST_DOMAIN, namespace=self.namespace, sandbox=name)),
            token_file=folder / f"{name}.token",
        )

    def renewer(self, name: str) -> Renewer:
        return Renewer(
            addresses=(f"127.0.0.1:{self.installation.discovery_port}",),
            trust_domain=TRUST_DOMAIN,
            trust=TrustBundle(self.installation.trust_bundle()),
            owner=str(supervisor_id(TRUST_DOMAIN, namespace=self.namespace, sandbox=name)),
        )


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("revocation")
    with FlakyProxy(control_plane.url, authority=control_plane.authority) as proxy:
        installation = Installation(control_plane, directory)
        installation.install()
        point(directory / "operator.kubeconfig", url=proxy.url)
        namespace = control_plane.create_namespace("revocation")
        try:
            installation.start()
            installation.apply(a_policy("outbound", namespace=namespace, keys=an_entry()))
            yield World(installation, proxy, namespace)
        finally:
            proxy.calm()
            installation.stop()
            installation.uninstall()
            control_plane.kubectl("delete", "namespace", namespace, "--wait=false")


@asynccontextmanager
async def a_stream(world: World, credentials: Credentials) -> AsyncIterator[Any]:
    """One that was offered something."""
    channel = open_operator_channel(
        f"127.0.0.1:{world.installation.discovery_port}",
        trust_domain=TRUST_DOMAIN,
        roots_pem=world.installation.trust_bundle().read_bytes(),
        credentials=credentials,
    )
    watch: Any = channel.stream_stream(
        f"/{DISCOVERY}/Watch",
        request_serializer=pb.SupervisorReport.SerializeToString,
        response_deserializer=pb.GenerationOffer.FromString,
    )(None)
    try:
        await watch.write(pb.SupervisorReport(hello=pb.Hello(version="test")))
        assert isinstance(await watch.read(), pb.GenerationOffer)
        yield watch
    finally:
        watch.cancel()
        await channel.close(None)


async def end_of(watch: Any) -> grpc.StatusCode:
    async with asyncio.timeout(MINUTE):
        try:
            while isinstance(await watch.read(), pb.GenerationOffer):
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
    code: grpc.StatusCode = await watch.code()
    return code


async def refused(world: World, credentials: Credentials, enroller: Enroller, name: str) -> None:
    """What it has in hand opens nothing any more."""
    with pytest.raises(RenewalRefused):
        await world.renewer(name).renew(credentials, attempt=0)
    with pytest.raises(TokenRefused):
        await enroller.enroll(attempt=0)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        async with a_stream(world, credentials):
            pass
    assert ended.value.code() in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}


async def test_a_certificate_is_renewed_while_its_pod_lives(world: World, tmp_path: Path) -> None:
    world.sandbox("steady")
    enroller = world.enroller(tmp_path, "steady")
    first = await enroller.enroll(attempt=0)
    second = await world.renewer("steady").renew(first, attempt=0)
    assert second.leaf.subject == first.leaf.subject
    async with a_stream(world, second):
        # The older one is in nobody's way.
        with pytest.raises(RenewalRefused):
            await world.renewer("steady").renew(first, attempt=0)
        third = await world.renewer("steady").renew(second, attempt=0)
    async with a_stream(world, third):
        pass
    # A crash may lose the key: the same Pod may enrol again, and that one counts.
    fourth = await enroller.enroll(attempt=0)
    with pytest.raises(RenewalRefused):
        await world.renewer("steady").renew(third, attempt=0)
    async with a_stream(world, fourth):
        pass


@pytest.mark.parametrize("notices", ["at once", "by its list alone"])
async def test_a_deleted_pod_loses_access_within_a_minute(world: World, tmp_path: Path, notices: str) -> None:
    name = "seen" if notices == "at once" else "missed"
    world.sandbox(name)
    enroller = world.enroller(tmp_path, name)
    credentials = await enroller.enroll(attempt=0)
    async with a_stream(world, credentials) as watch:
        if notices != "at once":
            # Every watch ends, and none is had until the end: what is deleted meanwhile is told to nobody.
            await asyncio.to_thread(world.proxy.expire_watches, Gone.STATUS)
        began = time.monotonic()
        try:
            await asyncio.to_thread(world.delete, name)
            assert await end_of(watch) is grpc.StatusCode.PERMISSION_DENIED
        finally:
            await asyncio.to_thread(world.proxy.calm)
        assert time.monotonic() - began < MINUTE
    if notices != "at once":
        assert "deletion was never seen" in world.installation.operator.log.read_text()
    await refused(world, credentials, enroller, name)


async def test_a_pod_that_takes_over_a_name_is_another_supervisor(world: World, tmp_path: Path) -> None:
    world.sandbox("handed-on", pod="first")
    enroller = world.enroller(tmp_path, "handed-on", pod="first")
    credentials = await enroller.enroll(attempt=0)
    await asyncio.to_thread(world.plane.kubectl, "delete", "pod", "first", "-n", world.namespace)
    world.sandbox("handed-on", pod="second")
    with pytest.raises(RenewalRefused):
        await world.renewer("handed-on").renew(credentials, attempt=0)
    with pytest.raises(TokenRefused):
        await enroller.enroll(attempt=0)
    its_own = await world.enroller(tmp_path, "handed-on", pod="second").enroll(attempt=0)
    assert its_own.leaf.subject != credentials.leaf.subject
    assert its_own.spiffe_id == credentials.spiffe_id

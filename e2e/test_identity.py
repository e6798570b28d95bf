"""Who gets which certificate and which generation, on a real API server with real pod-bound tokens."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from grpc.aio import AioRpcError

from e2e.harness import TRUST_DOMAIN, Installation, a_pod, service_credentials
from e2e.objects import Document, a_policy, an_entry
from supervisor_middleware.errors import Unavailable, Untrusted
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.settings import AUDIENCE
from supervisor_middleware.supervisor.enrollment import Enroller, TokenRefused
from supervisor_middleware.supervisor.operator_channel import open_operator_channel
from supervisor_middleware.supervisor.trust import TrustBundle
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen.distribution_pb2_grpc import EnrollmentStub

DISCOVERY = "supervisor_middleware.distribution.v1alpha1.GenerationDiscovery"


@dataclass(frozen=True, slots=True)
class Tenants:
    """Two namespaces, each with a policy and a sandbox `agent` in a Pod `agent-0`."""

    red: str
    blue: str


@pytest.fixture(scope="module")
def tenants(installation: Installation) -> Iterator[Tenants]:
    both = Tenants(*(installation.plane.create_namespace(n) for n in ("red", "blue")))
    documents: list[Document] = []
    for key, namespace in (("only_red", both.red), ("only_blue", both.blue)):
        documents.append(a_policy("outbound", namespace=namespace, **{key: an_entry()}))
        documents.append(a_pod("agent-0", namespace=namespace, sandbox="agent"))
    installation.apply(*documents)
    yield both
    installation.plane.kubectl("delete", "namespace", both.red, both.blue, "--wait=false")


def _enroller(installation: Installation, folder: Path, *, token: str, owner: str) -> Enroller:
    (folder / "token").write_text(token)
    return Enroller(
        addresses=(f"127.0.0.1:{installation.enrollment_port}",),
        trust_domain=TRUST_DOMAIN,
        trust=TrustBundle(installation.trust_bundle()),
        owner=str(supervisor_id(TRUST_DOMAIN, namespace=owner, sandbox="agent")),
        token_file=folder / "token",
    )


def _token(installation: Installation, namespace: str, **how: str) -> str:
    return installation.plane.token_for("default", namespace, **{"audience": AUDIENCE, **how})


async def _first_offer(installation: Installation, credentials: Credentials | None) -> pb.GenerationOffer:
    """What a supervisor that was never configured is sent first."""
    channel = open_operator_channel(
        f"127.0.0.1:{installation.discovery_port}",
        trust_domain=TRUST_DOMAIN,
        roots_pem=installation.trust_bundle().read_bytes(),
        credentials=credentials,
    )
    watch = channel.stream_stream(
        f"/{DISCOVERY}/Watch",
        request_serializer=pb.SupervisorReport.SerializeToString,
        response_deserializer=pb.GenerationOffer.FromString,
    )(None)
    try:
        await watch.write(pb.SupervisorReport(hello=pb.Hello(version="test")))
        offer = await watch.read()
        assert isinstance(offer, pb.GenerationOffer)
        return offer
    finally:
        await channel.close(None)


async def test_a_token_proves_its_own_pod_and_no_other_namespaces(
    installation: Installation, tenants: Tenants, tmp_path: Path
) -> None:
    of_blue = _token(installation, tenants.blue, bound_pod="agent-0")
    liar = _enroller(installation, tmp_path, token=of_blue, owner=tenants.red)
    with pytest.raises(Untrusted, match=f"issued a certificate for .*/ns/{tenants.blue}/sandbox/agent"):
        await liar.enroll(attempt=0)


async def test_a_supervisor_gets_the_generation_of_its_certificate(
    installation: Installation, tenants: Tenants, tmp_path: Path
) -> None:
    token = _token(installation, tenants.blue, bound_pod="agent-0")
    credentials = await _enroller(installation, tmp_path, token=token, owner=tenants.blue).enroll(attempt=0)
    offer = await _first_offer(installation, credentials)
    assert b"only-blue" in offer.payload
    assert b"only-red" not in offer.payload
    assert json.loads(offer.payload)
    policy = installation.get("sbp", "outbound", namespace=tenants.blue)
    assert offer.epoch >= policy["status"]["accepted"]["epoch"]


async def test_without_a_certificate_nobody_watches(installation: Installation, tenants: Tenants) -> None:
    with pytest.raises(AioRpcError, match="UNAVAILABLE"):
        await _first_offer(installation, None)


@pytest.mark.parametrize(
    "flaw",
    [
        "another audience",
        "no audience",
        "no pod",
        "no sandbox label",
        "a pod that is being deleted",
        "a deleted pod",
        "expired",
        "signed by another key",
        "not signed",
        "another pod's uid",
        "another namespace's account",
    ],
)
async def test_a_token_that_proves_no_live_sandbox_is_refused(
    installation: Installation, tenants: Tenants, tmp_path: Path, flaw: str
) -> None:
    namespace = tenants.red
    plain = a_pod("plain", namespace=namespace, sandbox="x")
    del plain["metadata"]["labels"]
    match flaw:
        case "another audience":
            token = _token(installation, namespace, bound_pod="agent-0", audience="somebody-else")
        case "no audience":
            token = installation.plane.token_for("default", namespace, bound_pod="agent-0")
        case "no pod":
            token = _token(installation, namespace)
        case "no sandbox label":
            installation.apply(plain)
            token = _token(installation, namespace, bound_pod="plain")
        case "a deleted pod":
            installation.apply(a_pod("brief", namespace=namespace, sandbox="brief"))
            token = _token(installation, namespace, bound_pod="brief")
            installation.plane.kubectl("delete", "pod", "brief", "-n", namespace)
        case "a pod that is being deleted":
            leaving = a_pod("leaving", namespace=namespace, sandbox="leaving")
            leaving["metadata"]["finalizers"] = ["example.test/held"]
            installation.apply(leaving)
            token = _token(installation, namespace, bound_pod="leaving")
            installation.plane.kubectl("delete", "pod", "leaving", "-n", namespace, "--wait=false")
        case _:
            token = _forged(installation, _token(installation, namespace, bound_pod="agent-0"), flaw=flaw)
    with pytest.raises(TokenRefused):
        await _enroller(installation, tmp_path, token=token, owner=namespace).enroll(attempt=0)
    assert token not in installation.operator.log.read_text()
    if flaw == "a pod that is being deleted":
        patch = '{"metadata":{"finalizers":null}}'
        installation.plane.kubectl("patch", "pod", "leaving", "-n", namespace, "--type=merge", "-p", patch)


def _forged(installation: Installation, token: str, *, flaw: str) -> str:
    """A token that says more than its bearer was given, or for longer."""
    header, claims = (json.loads(_decoded(part)) for part in token.split(".")[:2])
    bound = claims["kubernetes.io"]
    key = load_pem_private_key((installation.plane.directory / "pki" / "service-accounts.key").read_bytes(), None)
    match flaw:
        case "expired":
            claims |= {"iat": claims["iat"] - 7200, "nbf": claims["nbf"] - 7200, "exp": claims["iat"] - 3600}
        case "signed by another key":
            key = ec.generate_private_key(ec.SECP256R1())
        case "not signed":
            header["alg"] = "none"
        case "another pod's uid":
            bound["pod"]["uid"] = "00000000-0000-0000-0000-000000000000"
        case "another namespace's account":
            claims["sub"] = "system:serviceaccount:kube-system:default"
            bound["namespace"] = "kube-system"
        case _:
            raise AssertionError(flaw)
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{'' if flaw == 'not signed' else _encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


async def test_a_forger_who_holds_the_clusters_own_key_would_get_in(
    installation: Installation, tenants: Tenants, tmp_path: Path
) -> None:
    """What is wrong with the forged tokens above is their flaw, not how they are made."""
    token = _token(installation, tenants.red, bound_pod="agent-0")
    header, claims, _ = token.split(".")
    key = load_pem_private_key((installation.plane.directory / "pki" / "service-accounts.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(f"{header}.{claims}".encode(), ec.ECDSA(hashes.SHA256())))
    token = f"{header}.{claims}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"
    assert await _enroller(installation, tmp_path, token=token, owner=tenants.red).enroll(attempt=0)


async def test_a_stranger_to_the_trust_bundle_is_shown_no_token(
    installation: Installation, tenants: Tenants, tmp_path: Path
) -> None:
    token = _token(installation, tenants.red, bound_pod="agent-0")
    enroller = _enroller(installation, tmp_path, token=token, owner=tenants.red)
    strangers = tmp_path / "strangers.crt"
    strangers.write_bytes(service_credentials().trust_bundle_pem)
    enroller = replace(enroller, trust=TrustBundle(strangers))
    with pytest.raises(Unavailable, match="handshake failed"):
        await enroller.enroll(attempt=0)


async def test_an_unreadable_request_is_refused_and_the_operator_goes_on(
    installation: Installation, tenants: Tenants
) -> None:
    address = f"127.0.0.1:{installation.enrollment_port}"
    roots = installation.trust_bundle().read_bytes()
    channel = open_operator_channel(address, trust_domain=TRUST_DOMAIN, roots_pem=roots, credentials=None)
    stub = EnrollmentStub(channel)
    token = _token(installation, tenants.red, bound_pod="agent-0")
    for request, code in (
        (pb.EnrollRequest(), "UNAUTHENTICATED"),
        (pb.EnrollRequest(token="x" * 200_000), "UNAUTHENTICATED"),
        (pb.EnrollRequest(token="\x00\u20ac"), "UNAUTHENTICATED"),
        (pb.EnrollRequest(token=token, csr_pem=b"no request"), "INVALID_ARGUMENT"),
        (pb.EnrollRequest(token=token, csr_pem=b"x" * 300_000), "RESOURCE_EXHAUSTED"),
    ):
        with pytest.raises(AioRpcError) as refused:
            await stub.Enroll(request)
        assert refused.value.code().name == code
    await channel.close(None)
    installation.operator.check()

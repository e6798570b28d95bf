"""How a person reaches the operator: what is found out, what options replace, and what is said where nothing helps."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor_middleware.cli.status.reach import Reached, Target, Unreached, reached_locally, reaching
from supervisor_middleware.distribution.inspection import AUDIENCE
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.sources.cluster_api import Forbidden, NotFound
from supervisor_middleware.sources.cluster_connection import ApiCredentials
from supervisor_middleware.sources.local_access import LocalEndpoint, write_endpoint
from tests.pki.builders import TRUST_DOMAIN, an_authority

ROOTS = an_authority(now=datetime.now(UTC)).certificate_pem
OWN, OTHER = "supervisor-middleware", "team-a"
BUNDLE = "/api/v1/namespaces/{}/configmaps/supervisor-middleware-trust"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases/supervisor-middleware"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices/supervisor-middleware-leader"
BODIES: Mapping[str, Any] = {
    BUNDLE.format(OWN): {"data": {"ca.crt": ROOTS.decode()}},
    LEASE: {"spec": {"holderIdentity": "operator-0_3f2a"}},
    SLICE: {"ports": [{"name": "discovery", "port": 1}, {"name": "enrollment", "port": 9443}]},
}


class FakeApi:
    """An API server as a reader sees it; what is an error is raised."""

    def __init__(self, bodies: Mapping[str, Any] = BODIES, *, token: str | None = "own-token") -> None:
        self.bodies, self.token, self.created = bodies, token, list[tuple[str, Any]]()

    async def get(self, path: str) -> Any:
        found = self.bodies.get(path, NotFound(f"GET {path}: 404"))
        if isinstance(found, Exception):
            raise found
        return found

    async def create(self, path: str, body: Any) -> Any:
        self.created.append((path, body["spec"]))
        found = self.bodies.get(path, {"status": {"token": "made-token"}})
        if isinstance(found, Exception):
            raise found
        return found

    async def credentials(self) -> ApiCredentials:
        return ApiCredentials(server="https://127.0.0.1:1", token=self.token)


async def reached(api: FakeApi, **target: Any) -> Reached:
    async with reaching(Target(**{"kubeconfig": Path("config"), **target}), api) as found:  # type: ignore[arg-type]
        return found


def without(*paths: str) -> dict[str, Any]:
    return {path: body for path, body in BODIES.items() if path not in paths}


@pytest.fixture(autouse=True)
def outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


async def test_everything_comes_from_the_api_server() -> None:
    found = await reached(FakeApi())
    assert (found.token, found.trust_domain, found.roots_pem) == ("own-token", TRUST_DOMAIN, ROOTS)
    # A port of our own, behind which the Pod's is.
    assert found.address.startswith("127.0.0.1:")


async def test_what_is_given_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("given-token\n")
    (tmp_path / "roots").write_bytes(ROOTS)
    api = FakeApi({})
    given = {"operator": "op.example:8443", "token_file": tmp_path / "token", "trust_bundle": tmp_path / "roots"}
    found = await reached(api, **given, trust_domain="other.example")
    assert (found.address, found.token, found.trust_domain) == ("op.example:8443", "given-token", "other.example")
    assert api.created == []


async def test_in_a_pod_the_service_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    found = await reached(FakeApi(without(LEASE)), kubeconfig=None)
    assert found.address == "supervisor-middleware.supervisor-middleware.svc:8443"


async def test_a_client_certificate_proves_nothing_so_a_token_is_made() -> None:
    api = FakeApi(token=None)
    assert (await reached(api)).token == "made-token"
    ((path, spec),) = api.created
    assert path == f"/api/v1/namespaces/{OWN}/serviceaccounts/supervisor-middleware-status/token"
    assert spec["audiences"] == [AUDIENCE]
    api = FakeApi()
    assert (await reached(api, service_account="team-a/viewer")).token == "made-token"
    assert api.created[0][0] == "/api/v1/namespaces/team-a/serviceaccounts/viewer/token"


async def test_an_account_that_is_none_asks_nobody() -> None:
    for account in ("viewer", "team-a/", "/viewer", "a/b/c", "../x/viewer"):
        api = FakeApi()
        with pytest.raises(InvalidInput, match="--service-account"):
            await reached(api, service_account=account)
        assert api.created == []


async def test_nothing_that_proves_who_asks_says_what_would() -> None:
    path = f"/api/v1/namespaces/{OWN}/serviceaccounts/supervisor-middleware-status/token"
    with pytest.raises(Unreached, match="give --service-account NAMESPACE/NAME or --token-file FILE"):
        await reached(FakeApi({**BODIES, path: Forbidden("403")}, token=None))


async def test_the_trust_bundle_of_the_namespace_asked_about_counts_too() -> None:
    mine = {BUNDLE.format(OWN): Forbidden("403"), BUNDLE.format(OTHER): BODIES[BUNDLE.format(OWN)]}
    assert (await reached(FakeApi({**BODIES, **mine}), namespace=OTHER)).roots_pem == ROOTS
    with pytest.raises(Unreached, match="--trust-bundle FILE"):
        await reached(FakeApi({**BODIES, **mine}))
    empty = {BUNDLE.format(OWN): {"data": None}}
    with pytest.raises(InvalidInput, match="trust bundle"):
        await reached(FakeApi({**BODIES, **empty}))


async def test_roots_that_name_no_trust_domain_are_of_the_usual_one() -> None:
    server = an_authority(now=datetime.now(UTC)).issue_server(dns_names=("ca.example",), now=datetime.now(UTC))
    plain = {BUNDLE.format(OWN): {"data": {"ca.crt": server.certificate_chain_pem.decode()}}}
    assert (await reached(FakeApi({**BODIES, **plain}))).trust_domain == "openshell.internal"


@pytest.mark.parametrize("lease", [NotFound("404"), Forbidden("403")])
async def test_without_a_lease_nobody_is_found(lease: Exception) -> None:
    with pytest.raises(Unreached, match="give --operator-namespace NAME, or --operator HOST:PORT"):
        await reached(FakeApi({**BODIES, LEASE: lease}))


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": ""}, {"holderIdentity": "../x_1"}])
async def test_a_lease_that_nobody_holds_leads_nowhere(spec: Any) -> None:
    with pytest.raises(Unreached, match="no operator leads"):
        await reached(FakeApi({**BODIES, LEASE: {"spec": spec}}))


async def test_a_slice_that_is_not_there_means_the_usual_port() -> None:
    for bodies in (without(SLICE), {**BODIES, SLICE: {"ports": None}}):
        async with reaching(Target(kubeconfig=Path("config")), FakeApi(bodies)) as found:  # type: ignore[arg-type]
            assert found.problem() == ""


def test_a_control_plane_on_this_machine_is_found_by_its_files(tmp_path: Path) -> None:
    with pytest.raises(Unreached, match="start smw standalone"):
        reached_locally(Target(), tmp_path)
    write_endpoint(tmp_path, LocalEndpoint(address="127.0.0.1:1", token="t"))
    (tmp_path / "ca.crt").write_bytes(ROOTS)
    found = reached_locally(Target(), tmp_path)
    assert (found.address, found.token, found.trust_domain) == ("127.0.0.1:1", "t", TRUST_DOMAIN)
    (tmp_path / "empty").write_text(" ")
    with pytest.raises(InvalidInput, match="holds no token"):
        reached_locally(Target(token_file=tmp_path / "empty"), tmp_path)


def test_no_token_is_in_a_repr() -> None:
    found = Reached(address="a:1", roots_pem=ROOTS, trust_domain=TRUST_DOMAIN, token="s3cret")
    assert "s3cret" not in repr(found)

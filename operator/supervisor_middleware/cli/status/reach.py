"""How a person reaches the operator that serves: its address, whom to trust there, and a token that says who asks.

With a kubeconfig all three come from the API server. The address is a forwarded port of the Pod that leads; trusted
are the roots the operator publishes; the token is the kubeconfig's own, or, for people with a client certificate (it
proves nothing to anybody else), one made for a ServiceAccount. Options replace each of them.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509

from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.spiffe import is_label, is_subdomain, spiffe_id_of
from supervisor_middleware.settings import TRUST_DOMAIN

if TYPE_CHECKING:
    from supervisor_middleware.sources.cluster_api import ClusterApi

STATUS_ACCOUNT: Final = "supervisor-middleware-status"
"""The chart's ServiceAccount that may list supervisors everywhere: for administrators without a token."""
_SERVICE: Final = "supervisor-middleware"
_PORT: Final = 8443
_TOKEN_SECONDS: Final = 3600


class Unreached(Unavailable):
    """Nobody can be asked who runs what; says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which control plane, and as whom; what is None is found out."""

    state: Path | None = None
    kubeconfig: Path | None = None
    operator: str | None = None
    operator_namespace: str = "supervisor-middleware"
    namespace: str = ""
    token_file: Path | None = None
    service_account: str | None = None
    trust_bundle: Path | None = None
    trust_domain: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Where to ask. `problem` is what a connection failed of, where gRPC cannot know."""

    address: str
    roots_pem: bytes = field(repr=False)
    trust_domain: str
    token: str = field(repr=False)
    problem: Callable[[], str] = lambda: ""


def reached_locally(target: Target, state: Path) -> Reached:
    """The control plane that keeps its state in `state`.

    Raises:
        Unreached: none runs.
        InvalidInput: a file is no good.
    """
    from supervisor_middleware.pki.store import BUNDLE_FILE
    from supervisor_middleware.sources.local_access import read_endpoint

    endpoint = read_endpoint(state)
    if endpoint is None:
        raise Unreached(f"no control plane runs on {state}: start smw standalone")
    roots = (target.trust_bundle or state / BUNDLE_FILE).read_bytes()
    return Reached(
        address=target.operator or endpoint.address,
        roots_pem=roots,
        trust_domain=target.trust_domain or _trust_domain(roots),
        token=endpoint.token if target.token_file is None else _read_token(target.token_file),
    )


@asynccontextmanager
async def reaching(target: Target, api: "ClusterApi") -> AsyncIterator[Reached]:
    """The operator that leads in the cluster.

    Raises:
        Unreached: it cannot be found, or nothing proves to it who asks.
        InvalidInput: an option is no good.
    """
    address = target.operator
    if address is None and _is_in_cluster(target):
        address = f"{_SERVICE}.{target.operator_namespace}.svc:{_PORT}"
    pod, port = ("", 0) if address else await _leader(target, api)
    roots = await _roots(target, api)
    token = await _token(target, api)
    trust_domain = target.trust_domain or _trust_domain(roots)
    if address:
        yield Reached(address=address, roots_pem=roots, trust_domain=trust_domain, token=token)
        return
    from supervisor_middleware.sources.cluster_forward import forwarding

    async with forwarding(api, namespace=target.operator_namespace, pod=pod, port=port) as forwarder:

        def problem() -> str:
            where = f"port {port} of Pod {target.operator_namespace}/{pod} cannot be forwarded"
            hint = "needs create on pods/portforward, or give --operator HOST:PORT"
            return f"{where}: {forwarder.problem} ({hint})" if forwarder.problem else ""

        yield Reached(
            address=forwarder.address, roots_pem=roots, trust_domain=trust_domain, token=token, problem=problem
        )


async def _roots(target: Target, api: "ClusterApi") -> bytes:
    """The published trust bundle: the operator's, or the copy in the namespace that is asked about."""
    from supervisor_middleware.sources.cluster_api import Forbidden, NotFound
    from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE, TRUST_BUNDLE_KEY
    from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, core_path

    if target.trust_bundle is not None:
        return await asyncio.to_thread(target.trust_bundle.read_bytes)
    for namespace in dict.fromkeys(n for n in (target.operator_namespace, target.namespace) if n):
        try:
            found = await api.get(core_path(CONFIG_MAPS, namespace=namespace, name=TRUST_BUNDLE))
        except (NotFound, Forbidden):
            continue
        return str((found.get("data") or {}).get(TRUST_BUNDLE_KEY, "")).encode()
    raise Unreached(
        f"the trust bundle (ConfigMap {TRUST_BUNDLE}) is not in namespace {target.operator_namespace}, or you may "
        "not read it: give --operator-namespace, --namespace of a sandbox, or --trust-bundle FILE"
    )


async def _token(target: Target, api: "ClusterApi") -> str:
    from supervisor_middleware.sources.cluster_api import Forbidden, NotFound

    if target.token_file is not None:
        return await asyncio.to_thread(_read_token, target.token_file)
    own = (await api.credentials()).token
    if target.service_account is None and own is not None:
        return own
    account = target.service_account or f"{target.operator_namespace}/{STATUS_ACCOUNT}"
    try:
        return await _requested_token(account, api)
    except (Forbidden, NotFound) as error:
        raise Unreached(
            f"nothing proves who you are: the kubeconfig holds no token, and none can be made for ServiceAccount "
            f"{account} ({error}): give --service-account NAMESPACE/NAME or --token-file FILE"
        ) from error


async def _requested_token(account: str, api: "ClusterApi") -> str:
    from supervisor_middleware.distribution.inspection import AUDIENCE
    from supervisor_middleware.sources.cluster_kinds import core_path

    namespace, _, name = account.partition("/")
    if not is_label(namespace) or not is_subdomain(name):
        raise InvalidInput("--service-account: must be NAMESPACE/NAME")
    answer = await api.create(
        core_path("serviceaccounts", namespace=namespace, name=name) + "/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": _TOKEN_SECONDS},
        },
    )
    return str((answer.get("status") or {}).get("token") or "")


async def _leader(target: Target, api: "ClusterApi") -> tuple[str, int]:
    """The Pod that leads, and its port for enrolment: what its Lease and its EndpointSlice say."""
    from supervisor_middleware.sources.cluster_api import Forbidden, NotFound
    from supervisor_middleware.sources.cluster_lease import LEASE

    namespace = target.operator_namespace
    try:
        lease = await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}")
    except (NotFound, Forbidden) as error:
        raise Unreached(
            f"the operator that leads cannot be found in namespace {namespace} ({error}): "
            "give --operator-namespace NAME, or --operator HOST:PORT if you reach it"
        ) from error
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    pod = holder.partition("_")[0]
    if not is_subdomain(pod):
        raise Unreached(f"no operator leads in namespace {namespace} at this moment")
    return pod, await _port(namespace, api)


async def _port(namespace: str, api: "ClusterApi") -> int:
    from supervisor_middleware.sources.cluster_api import Forbidden, NotFound

    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{_SERVICE}-leader"
    try:
        slices = await api.get(path)
    except (NotFound, Forbidden):
        return _PORT
    return next((int(p["port"]) for p in slices.get("ports") or () if p.get("name") == "enrollment"), _PORT)


def _is_in_cluster(target: Target) -> bool:
    return target.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ


def _read_token(path: Path) -> str:
    token = path.read_text().strip()
    if not token:
        raise InvalidInput(f"{path}: holds no token")
    return token


def _trust_domain(roots_pem: bytes) -> str:
    """The one that the roots are of; the usual one if they name none, as roots made elsewhere may."""
    for root in _parsed(roots_pem):
        try:
            return spiffe_id_of(root).trust_domain
        except Untrusted:
            continue
    return TRUST_DOMAIN


def _parsed(roots_pem: bytes) -> tuple[x509.Certificate, ...]:
    try:
        return parse_bundle(roots_pem)
    except InvalidInput as error:
        raise InvalidInput(f"the trust bundle: {error}") from error

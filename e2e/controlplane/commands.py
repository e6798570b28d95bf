"""PURE: the command line of each server, and where in the directory its files are."""

from dataclasses import dataclass
from pathlib import Path

from e2e.controlplane.build import Binaries

# A private range: Services get addresses from it that lead nowhere, since no kube-proxy runs.
_SERVICE_RANGE = "10.0.0.0/24"
SERVICE_ADDRESS = "10.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Files of one control plane. The servers run in `directory` and find each other through these."""

    directory: Path

    @property
    def pki(self) -> Path:
        """Folder of the keys and certificates."""
        return self.directory / "pki"

    @property
    def authority(self) -> Path:
        """Certificate that every client and the API server trust."""
        return self.pki / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        """Certificate and key of the API server."""
        return self.pki / "apiserver.crt", self.pki / "apiserver.key"

    @property
    def admin(self) -> tuple[Path, Path]:
        """Certificate and key of the administrator."""
        return self.pki / "admin.crt", self.pki / "admin.key"

    @property
    def signing_key(self) -> Path:
        """Key that signs ServiceAccount tokens."""
        return self.pki / "service-accounts.key"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator."""
        return self.directory / "kubeconfig"

    @property
    def etcd_socket(self) -> Path:
        """Where etcd listens."""
        return self.directory / "etcd.sock"

    @property
    def users(self) -> Path:
        """Folder of other users' kubeconfigs."""
        return self.directory / "users"


def etcd(binaries: Binaries, layout: Layout) -> tuple[str, ...]:
    """A Unix socket instead of a port: nothing to collide with, and only the owner of the directory gets in."""
    # etcd demands a port in addresses that it only announces; a single member never dials them.
    announced = "unix://etcd:1"
    return (
        str(binaries.etcd),
        "--name=etcd",
        f"--data-dir={layout.directory}/etcd",
        f"--listen-client-urls=unix://{layout.etcd_socket}",
        f"--advertise-client-urls={announced}",
        f"--listen-peer-urls={announced}",
        f"--initial-advertise-peer-urls={announced}",
        f"--initial-cluster=etcd={announced}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )


def apiserver(binaries: Binaries, layout: Layout, *, port: int) -> tuple[str, ...]:
    """RBAC, default admission, ServiceAccount tokens; webhooks reach a Service through its EndpointSlices."""
    certificate, key = layout.server
    return (
        str(binaries.kube_apiserver),
        f"--etcd-servers=unix://{layout.etcd_socket}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing=true",  # the owner keeps the port reserved across restarts
        # The default reconciler refuses to publish a loopback address.
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
        f"--cert-dir={layout.pki}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={layout.authority}",
        "--authorization-mode=RBAC",
        "--enable-aggregator-routing=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={layout.signing_key}",
        f"--service-account-signing-key-file={layout.signing_key}",
        "--shutdown-delay-duration=0s",
        # Without it an open watch holds up the exit until the request timeout, a minute later.
        "--shutdown-watch-termination-grace-period=500ms",
        "--profiling=false",
    )


def controller_manager(binaries: Binaries, layout: Layout) -> tuple[str, ...]:
    """Every controller that makes sense without nodes; no port, no leader election."""
    return (
        str(binaries.kube_controller_manager),
        f"--kubeconfig={layout.kubeconfig}",
        f"--service-account-private-key-file={layout.signing_key}",
        f"--root-ca-file={layout.authority}",
        "--use-service-account-credentials=false",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    )

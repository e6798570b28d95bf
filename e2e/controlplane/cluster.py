"""A fresh, isolated Kubernetes control plane on loopback: etcd, kube-apiserver and, if wanted, the controllers.

There is no node and no kubelet: Pods are objects that never run. Callers: e2e fixtures and `python -m e2e.controlplane`.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.controlplane import commands
from e2e.controlplane.api import Api
from e2e.controlplane.build import Binaries, ensure
from e2e.controlplane.certificates import Authority, Credential, kubeconfig, signing_key
from e2e.controlplane.etcd import post
from e2e.controlplane.process import Guard, Server, reserve_port

_BOOT_SECONDS = 90.0
_POLL_SECONDS = 0.05
_KUBECTL_SECONDS = 120.0
_STOP_GRACE = timedelta(seconds=5)
_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts"


class BootError(Exception):
    """A server did not come up; the message holds the end of its log."""


class KubectlError(subprocess.CalledProcessError):
    """kubectl failed; the message holds what it said."""

    def __str__(self) -> str:
        return f"kubectl {' '.join(self.cmd[1:])}: exit code {self.returncode}\n{self.stderr}"


class Controllers(Enum):
    """Whether kube-controller-manager runs.

    It is what empties deleted namespaces, collects garbage, fills aggregated ClusterRoles and turns Deployments into
    Pods. Without it a boot costs less and nothing changes by itself.
    """

    ABSENT = "absent"
    RUNNING = "running"


class Lifetime(Enum):
    """When it ends if nobody stops it."""

    OF_THE_PROCESS = "of the process"
    DETACHED = "detached"


class ControlPlane:
    """One control plane: `start` and `stop` it once, or use it as a context manager.

    Any number may run at once. Everything it writes is in `directory`, which goes, with the servers, at `stop` or when
    this process ends in whatever way. All methods block: from a coroutine, call them with `asyncio.to_thread`.

    Attributes:
        directory: Where it lives; the logs are there as `<program>.log`.
        binaries: The programs it runs.
        controllers: Whether kube-controller-manager is one of them.
        url: Address of the API server.
        kubeconfig: Kubeconfig of a user in `system:masters`, written at `start`.
        authority: Who issued the API server's certificate, and trusts its clients.
    """

    def __init__(
        self,
        *,
        binaries: Binaries | None = None,
        controllers: Controllers = Controllers.ABSENT,
        directory: Path | None = None,
        lifetime: Lifetime = Lifetime.OF_THE_PROCESS,
    ) -> None:
        """Prepare one; nothing is written or run before `start`.

        Args:
            binaries: The programs; found, or built now, if omitted.
            controllers: Whether kube-controller-manager runs too.
            directory: Where it lives; must not exist yet. A temporary one if omitted.
            lifetime: Whether it ends with this process.
        """
        temporary = Path(tempfile.gettempdir()) / f"smw-controlplane-{secrets.token_hex(6)}"
        self.directory = (directory or temporary).resolve()
        self.binaries = binaries or ensure()
        self.controllers = controllers
        self._lifetime = lifetime
        self._layout = commands.Layout(directory=self.directory)
        self.authority = Authority()
        self._cleanup = ExitStack()
        self._reservation = reserve_port()
        port = self._reservation.getsockname()[1]
        self.url = f"https://127.0.0.1:{port}"
        self.kubeconfig = self._layout.kubeconfig
        self._api = Api(url=self.url, authority=self.authority.certificate, credential=self._layout.admin)
        self._etcd = self._server(commands.etcd(self.binaries, self._layout))
        self._apiserver = self._server(commands.apiserver(self.binaries, self._layout, port=port))
        self._controller_manager = self._server(commands.controller_manager(self.binaries, self._layout))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Bring it up and return once it serves requests and its `default` namespace can hold Pods.

        Raises:
            BootError: A server ended or was not ready in time. Nothing is left behind then.
        """
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the servers and remove the directory; nothing happens if that was done."""
        self._reservation.close()
        self._cleanup.close()

    def start_apiserver(self) -> None:
        """Start kube-apiserver on its old port and data, and return once it serves."""
        self._apiserver.start()
        self._await(self._is_ready, self._apiserver)

    def stop_apiserver(self) -> None:
        """Stop kube-apiserver alone; clients find its port closed."""
        self._apiserver.stop(grace=_STOP_GRACE)

    def restart_apiserver(self) -> None:
        """Stop and start kube-apiserver: every watch breaks, every object stays."""
        self.stop_apiserver()
        self.start_apiserver()

    def stop_etcd(self) -> None:
        """Stop etcd alone: the API server answers, and can neither read nor write."""
        self._etcd.stop(grace=_STOP_GRACE)

    def start_etcd(self) -> None:
        """Start etcd on its old data, and return once the API server is ready again."""
        self._etcd.start()
        self._await(self._is_ready, self._etcd, self._apiserver)

    def revive(self) -> None:
        """Start etcd on its old data, and the API server anew, as a kubelet does that finds it not alive.

        After a minute without etcd it dials that once a minute, too.
        """
        self._etcd.start()
        self.restart_apiserver()

    def refuse_writes(self) -> None:
        """As if etcd had reached its quota: what is there can be read and deleted, nothing can be written."""
        self._alarm("ACTIVATE")

    def take_writes(self) -> None:
        """End `refuse_writes`."""
        self._alarm("DEACTIVATE")

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - named as in subprocess.run
        check: bool = True,
        kubeconfig: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it printed.

        Args:
            arguments: What follows `kubectl`.
            input: Its standard input, for `-f -`.
            check: Whether a failure raises; otherwise look at `returncode` and `stderr`.
            kubeconfig: Whose identity it uses; the administrator's if omitted.

        Raises:
            KubectlError: It failed, and `check` was asked for.
        """
        command = [str(self.binaries.kubectl), *arguments]
        surroundings = {
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "cache"),
        }
        done = subprocess.run(
            command,
            input=input or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=_KUBECTL_SECONDS,
            env=os.environ | surroundings,
        )
        if check and done.returncode:
            raise KubectlError(done.returncode, command, done.stdout, done.stderr)
        return done

    def read(self, path: str) -> dict[str, Any] | None:
        """An object or a list of them as the API server has it; None if there is no such thing, or no answer.

        As `kubectl get`, for whoever asks until something has come about: it costs a tenth of the computing.
        """
        answer = self._api.ask("GET", path)
        if answer is None:
            return None
        found: dict[str, Any] = json.loads(answer)
        return found

    def refusal(self, collection: str, document: Mapping[str, Any]) -> str:
        """What the API server says against an object that it is asked to create for a try; nothing if it would."""
        where, body = f"{collection}?dryRun=All", json.dumps(document)
        status, content = self._api.send("POST", where, body=body, seconds=_KUBECTL_SECONDS)
        return "" if status == HTTPStatus.CREATED else f"{status}: {content.decode()}"

    def create_namespace(self, prefix: str) -> str:
        """Create a namespace that can hold Pods, and return its name: the prefix, made legal, and a random end."""
        legal = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")[:48].rstrip("-") or "test"
        name = f"{legal}-{secrets.token_hex(4)}"
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        # The ServiceAccount that admission demands for Pods; without its controller nobody else makes it.
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        both = json.dumps({"apiVersion": "v1", "kind": "List", "items": [namespace, account]})
        self.kubectl("apply", "--server-side", "-f", "-", input=both)
        return name

    def token_for(
        self, service_account: str, namespace: str, *, bound_pod: str | None = None, audience: str | None = None
    ) -> str:
        """Return a token of the ServiceAccount (TokenRequest), as a Pod's projected volume would hold it.

        Args:
            service_account: Its name; it must exist.
            namespace: Where it is.
            bound_pod: Name of the Pod that the token is bound to; it must exist and use the ServiceAccount.
            audience: Who the token is for; the API server if omitted.
        """
        binding = () if bound_pod is None else ("--bound-object-kind=Pod", f"--bound-object-name={bound_pod}")
        target = () if audience is None else (f"--audience={audience}",)
        done = self.kubectl("create", "token", service_account, f"--namespace={namespace}", *binding, *target)
        return done.stdout.strip()

    def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Write the kubeconfig of a user known by client certificate, without any right of its own."""
        identity = hashlib.sha256("\0".join([name, *groups]).encode()).hexdigest()[:8]
        path = self._layout.users / f"{re.sub(r'[^A-Za-z0-9.-]', '_', name)}-{identity}.kubeconfig"
        self._write_kubeconfig(path, user=name, credential=self.authority.client(name, groups))
        return path

    def _boot(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True)
        if self._lifetime is Lifetime.OF_THE_PROCESS:
            self._cleanup.callback(Guard(self.directory).clear)
        self._cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self._write_files()
        # Undone in reverse: a kube-apiserver whose etcd is gone never finishes its graceful exit.
        self._run(self._etcd)
        self._run(self._apiserver)
        self._await(self._is_ready, self._etcd, self._apiserver)
        if self.controllers is Controllers.RUNNING:
            self._run(self._controller_manager)
            self._await(lambda: self._get(f"{_DEFAULT_ACCOUNT}/default"), self._apiserver, self._controller_manager)
        else:
            self._api.ask("POST", _DEFAULT_ACCOUNT, body=json.dumps({"metadata": {"name": "default"}}))

    def _server(self, command: Sequence[str]) -> Server:
        return Server(command, directory=self.directory)

    def _run(self, server: Server) -> None:
        self._cleanup.callback(server.stop, grace=_STOP_GRACE)
        server.start()

    def _write_files(self) -> None:
        self._layout.pki.mkdir()
        self._layout.users.mkdir()
        self._layout.authority.write_bytes(self.authority.certificate)
        self._layout.signing_key.write_bytes(signing_key())
        names = ("127.0.0.1", "localhost", commands.SERVICE_ADDRESS, "kubernetes.default.svc", "kubernetes.default")
        admin = self.authority.client("admin", ["system:masters"])
        for (certificate, key), credential in (
            (self._layout.server, self.authority.server(*names)),
            (self._layout.admin, admin),
        ):
            certificate.write_bytes(credential.certificate)
            key.write_bytes(credential.key)
        self._write_kubeconfig(self.kubeconfig, user="admin", credential=admin)

    def _write_kubeconfig(self, path: Path, *, user: str, credential: Credential) -> None:
        text = kubeconfig(url=self.url, authority=self.authority, credential=credential, user=user)
        path.touch(mode=0o600)
        path.write_text(text)

    def _await(self, condition: Callable[[], bool], *servers: Server) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS
        while not condition():
            if dead := [server for server in servers if not server.is_running]:
                raise BootError("\n".join(server.report() for server in dead))
            if time.monotonic() > deadline:
                raise BootError("\n".join([f"Not ready in {_BOOT_SECONDS:.0f} s.", *(s.report() for s in servers)]))
            time.sleep(_POLL_SECONDS)

    def _is_ready(self) -> bool:
        # The API server is ready a moment before its own controller has made the namespace.
        return self._get("/readyz") and self._get("/api/v1/namespaces/default")

    def _alarm(self, action: str) -> None:
        call = {"action": action, "memberID": "1", "alarm": "NOSPACE"}
        post(self._layout.etcd_socket, "/v3/maintenance/alarm", call)

    def _get(self, path: str) -> bool:
        return self._api.ask("GET", path) is not None

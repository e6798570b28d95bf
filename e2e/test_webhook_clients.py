"""The API server proves to the webhook who it is, and nobody else is heard: its own client certificate, verified."""

import secrets
import ssl
from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import pytest
import yaml

from e2e.conftest import _apply_crds
from e2e.controlplane import commands
from e2e.controlplane.build import Binaries
from e2e.controlplane.certificates import Authority
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.harness import LOOPBACK, Installation
from e2e.objects import a_policy, an_entry
from supervisor_middleware.cli.processes import free_port

_CLIENT = "kube-apiserver"


@pytest.fixture(scope="module")
def installation(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An API server with a client certificate for webhooks, and an operator that demands it."""
    folder = tmp_path_factory.mktemp("clients")
    port, authority = free_port(), Authority()
    (folder / "client-ca.crt").write_bytes(authority.certificate)
    for name in (_CLIENT, "somebody"):
        credential = authority.client(name)
        (folder / f"{name}.crt").write_bytes(credential.certificate)
        (folder / f"{name}.key").write_bytes(credential.key)
    plane = ControlPlane(binaries=binaries, controllers=Controllers.RUNNING)
    address = int(plane.url.rpartition(":")[2])
    command = commands.apiserver(binaries, plane._layout, port=address)
    plane._apiserver = plane._server((*command, f"--admission-control-config-file={_admission(folder, port)}"))
    with plane:
        _apply_crds(plane)
        demanded = {
            "SMW_WEBHOOK_CLIENT_CA": str(folder / "client-ca.crt"),
            "SMW_WEBHOOK_CLIENT_NAMES": _CLIENT,
        }
        with Installation(plane, folder / "operator", webhook_port=port, environment=demanded) as installed:
            yield installed


def _admission(folder: Path, port: int) -> Path:
    """Which certificate the API server shows to which webhook."""
    kubeconfig, configuration = folder / "webhooks.kubeconfig", folder / "admission.yaml"
    user = {
        "client-certificate": str(folder / f"{_CLIENT}.crt"),
        "client-key": str(folder / f"{_CLIENT}.key"),
    }
    users = [{"name": f"{LOOPBACK}:{port}", "user": user}]
    kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "users": users}))
    plugin = {
        "name": "ValidatingAdmissionWebhook",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(kubeconfig),
        },
    }
    configuration.write_text(
        yaml.safe_dump(
            {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
        )
    )
    return configuration


def test_the_api_server_is_heard(installation: Installation) -> None:
    installation.apply(a_policy("fine", namespace="default"))
    said = installation.refusal(a_policy("wrong", namespace="default", one=an_entry("acme/nobody")))
    assert "no accepted registration serves this binding" in said


def test_nobody_else_is(installation: Installation) -> None:
    folder = installation.directory.parent
    assert _post(installation, None) == 0
    assert _post(installation, folder / "somebody") == 403
    assert _post(installation, folder / _CLIENT) == 400, "who is heard learns that this is no review"


def _post(installation: Installation, credential: Path | None) -> int:
    """The status; 0 where there is no answer."""
    context = ssl._create_unverified_context()
    if credential is not None:
        context.load_cert_chain(f"{credential}.crt", f"{credential}.key")
    timeout = timedelta(seconds=10).total_seconds()
    connection = HTTPSConnection(LOOPBACK, installation.webhook_port, context=context, timeout=timeout)
    try:
        connection.request("POST", "/validate", body=secrets.token_hex(8))
        return connection.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()

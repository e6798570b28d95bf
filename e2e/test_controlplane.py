"""The control plane itself: what a test may rely on before it tests anything of ours."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.controlplane.build import Binaries, kubernetes_version
from e2e.controlplane.cluster import BootError, Controllers, ControlPlane, KubectlError
from e2e.controlplane.guard import processes_of

_ROOT = Path(__file__).resolve().parents[1]
_SERVERS = {"etcd", "kube-apiserver", "kube-controller-manager"}


def test_reports_its_true_version(control_plane: ControlPlane) -> None:
    versions = json.loads(control_plane.kubectl("version", "--output=json").stdout)
    server = versions["serverVersion"]
    assert kubernetes_version() == "v1.35.4"
    assert (server["gitVersion"], server["major"], server["minor"]) == ("v1.35.4", "1", "35")
    assert versions["clientVersion"]["gitVersion"] == "v1.35.4"


def test_controllers_do_their_work(control_plane: ControlPlane) -> None:
    control_plane.kubectl("wait", "--for=jsonpath={.rules[0].verbs}", "clusterrole/view", "--timeout=30s")


def test_another_user_has_no_rights_but_those_granted(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.user_kubeconfig("jane", ["tenants", "auditors"])
    asked = control_plane.kubectl("auth", "whoami", "--output=json", kubeconfig=kubeconfig)
    user = json.loads(asked.stdout)["status"]["userInfo"]
    assert user["username"] == "jane"
    assert {"tenants", "auditors"} <= set(user["groups"])

    listing = ("get", "pods", f"--namespace={namespace}")
    with pytest.raises(KubectlError, match="pods is forbidden"):
        control_plane.kubectl(*listing, kubeconfig=kubeconfig)
    binding = ("rolebinding", "tenants", "--clusterrole=view", "--group=tenants", f"--namespace={namespace}")
    control_plane.kubectl("create", *binding)
    control_plane.kubectl("wait", "--for=jsonpath={.rules[0].verbs}", "clusterrole/view", "--timeout=30s")
    _eventually(lambda: not control_plane.kubectl(*listing, kubeconfig=kubeconfig, check=False).returncode)


def test_pod_bound_token_names_its_pod_when_reviewed(control_plane: ControlPlane, namespace: str) -> None:
    made = control_plane.kubectl("create", "-f", "-", "--output=json", input=json.dumps(_pod("sandbox", namespace)))
    uid = json.loads(made.stdout)["metadata"]["uid"]

    token = control_plane.token_for("default", namespace, bound_pod="sandbox", audience="the-operator")

    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["the-operator"]},
    }
    answer = control_plane.kubectl("create", "-f", "-", "--output=json", input=json.dumps(review))
    status = json.loads(answer.stdout)["status"]
    assert status["authenticated"] is True
    assert status["audiences"] == ["the-operator"]
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["sandbox"]
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]


def test_two_at_once_share_nothing_and_a_restart_keeps_objects(
    control_plane: ControlPlane, fresh_control_plane: ControlPlane
) -> None:
    url = fresh_control_plane.url
    fresh_control_plane.kubectl("create", "configmap", "kept", "--from-literal=key=value")

    fresh_control_plane.restart_apiserver()

    kept = fresh_control_plane.kubectl("get", "configmap", "kept", "--output=jsonpath={.data.key}")
    assert kept.stdout == "value"
    assert fresh_control_plane.url == url != control_plane.url
    elsewhere = control_plane.kubectl("get", "configmap", "kept", check=False)
    assert "NotFound" in elsewhere.stderr


def test_stop_leaves_no_process_and_no_directory(binaries: Binaries) -> None:
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as plane:
        assert set(processes_of(plane.directory).values()) == _SERVERS
    assert processes_of(plane.directory) == {}
    assert not plane.directory.exists()
    plane.stop()


def test_a_killed_owner_leaves_no_process_and_no_directory(binaries: Binaries) -> None:
    program = (
        "import time; from e2e.controlplane.cluster import ControlPlane; plane = ControlPlane(); plane.start();"
        "print(plane.directory, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=_ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        assert set(processes_of(directory).values()) == {"etcd", "kube-apiserver"}
        owner.send_signal(signal.SIGKILL)
    _eventually(lambda: not directory.exists())
    assert processes_of(directory) == {}


def test_a_server_that_dies_at_boot_is_named_with_its_log(binaries: Binaries, tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho no space left on the moon\nexit 3\n")
    broken.chmod(0o755)
    plane = ControlPlane(binaries=replace(binaries, etcd=broken))
    with pytest.raises(BootError, match=r"etcd ended with exit code 3(.|\n)*no space left on the moon"):
        plane.start()
    assert processes_of(plane.directory) == {}
    assert not plane.directory.exists()


def test_one_for_a_person_outlives_its_command(binaries: Binaries, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    try:
        assert f"export KUBECONFIG={directory}/kubeconfig" in _command("up", directory, code=0)
        assert "Already up: Kubernetes v1.35.4" in _command("up", directory, code=0)
        assert set(processes_of(directory).values()) == _SERVERS
        assert "is up" in _command("status", directory, code=0)
    finally:
        stopped = _command("down", directory, code=0)
    assert "Stopped" in stopped
    assert "Not up" in _command("status", directory, code=1)
    assert "Nothing to stop" in _command("down", directory, code=0)
    assert processes_of(directory) == {}


def _command(verb: str, directory: Path, *, code: int) -> str:
    command = [sys.executable, "-m", "e2e.controlplane", verb, f"--directory={directory}"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def _pod(name: str, namespace: str) -> dict[str, object]:
    container = {"name": "main", "image": "none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container]},
    }


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)

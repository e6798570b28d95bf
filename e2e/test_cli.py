"""The command line towards a cluster: `smw status`, also as a kubectl plugin, and how `smw operator` ends."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.harness import OPERATOR_NAMESPACE, Installation
from e2e.objects import a_policy, a_registration, an_entry
from supervisor_middleware.cli.processes import free_port
from tests.cli.commands import BIN, Outcome, in_a_process

POLICY = "sandboxpolicies.middleware.openshell.io"


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> str:
    """Holds one policy that is in force (nobody runs it) and one whose registration cannot be reached."""
    namespace = installation.plane.create_namespace("status")
    installation.apply(a_policy("good", namespace=namespace))
    installation.apply(a_registration("absent", endpoint=f"http://127.0.0.1:{free_port()}"))
    installation.await_condition("sbp", "good", "Programmed=True/NoSandboxes", namespace=namespace)
    installation.await_condition("smw", "absent", "Ready=False/Unreachable")
    return namespace


def status(installation: Installation, *arguments: str) -> Outcome:
    return in_a_process("status", "--kubeconfig", installation.plane.kubeconfig, *arguments)


def test_the_status_of_a_cluster_is_shown_and_is_exit_1_while_something_is_wrong(
    installation: Installation, namespace: str
) -> None:
    shown = status(installation)
    # Who runs what is tested in `test_supervisor_status`.
    assert shown.code == 1
    assert shown.err.startswith("smw: supervisors are not shown: ")
    assert shown.err.count("\n") == 1
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["absent", "False", "Unreachable", "0", "0"] in rows
    assert [f"{namespace}/good", "True", "True", "NoSandboxes", "1", "1", "0/0"] in rows
    assert "SupervisorMiddleware absent" in shown.out
    assert "  spec.grpcEndpoint: Describe failed: the connection failed" in shown.out


def test_machines_get_the_same_from_a_cluster(installation: Installation, namespace: str) -> None:
    as_json, as_yaml = status(installation, "-o", "json"), status(installation, "-o", "yaml")
    value = json.loads(as_json.out)
    assert value == yaml.safe_load(as_yaml.out)
    assert {(o["kind"], o["namespace"], o["name"]) for o in value} >= {
        ("SupervisorMiddleware", None, "absent"),
        ("SandboxPolicy", namespace, "good"),
    }


def test_it_is_a_plugin_of_kubectl(installation: Installation, namespace: str) -> None:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    kubectl = str(installation.plane.binaries.kubectl)
    done = subprocess.run(
        [kubectl, "smw", "status"],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(installation.plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{namespace}/good" in done.stdout
    assert done.returncode == 1


def test_a_cluster_that_is_gone_and_one_that_refuses_are_one_line_and_exit_2(
    installation: Installation, tmp_path: Path
) -> None:
    config = yaml.safe_load(installation.plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "nobody"}
    (tmp_path / "refused").write_text(yaml.safe_dump(config))
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    (tmp_path / "gone").write_text(yaml.safe_dump(config))
    for name in ("refused", "gone"):
        shown = in_a_process("status", "--kubeconfig", tmp_path / name)
        assert (shown.code, shown.out) == (2, "")
        (line,) = shown.err.splitlines()
        assert line.startswith("smw: ")


def test_an_operator_that_a_newer_one_overtook_steps_down_and_leads_again_above_it(
    installation: Installation, namespace: str
) -> None:
    newer = 4_000_000_000
    installation.plane.kubectl(
        *("patch", POLICY, "good", "-n", namespace, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": {"accepted": {"epoch": newer}}})),
    )
    installation.apply(a_policy("good", namespace=namespace, more=an_entry(order=7)))
    installation.await_condition("sbp", "good", "Programmed=True/NoSandboxes", namespace=namespace)
    accepted = installation.get("sbp", "good", namespace=namespace)["status"]["accepted"]
    assert accepted["epoch"] > newer
    assert "this operator steps down" in installation.operator.log.read_text()


def test_an_operator_that_is_told_to_ends_well(installation: Installation) -> None:
    running = installation.operator.running
    assert running is not None
    running.terminate()
    assert running.wait(30) == 0
    assert "Traceback" not in installation.operator.log.read_text()
    installation.start()


def test_an_operator_without_a_cluster_says_so(installation: Installation, tmp_path: Path) -> None:
    for content, problem in ((None, "no such file"), ("{", "cannot connect to a cluster by ")):
        if content is not None:
            (tmp_path / "config").write_text(content)
        shown = in_a_process("operator", "--kubeconfig", tmp_path / "config", SMW_NAMESPACE=OPERATOR_NAMESPACE)
        assert (shown.code, shown.out) == (2, "")
        (line,) = shown.err.splitlines()
        assert line.startswith("smw: ")
        assert problem in line

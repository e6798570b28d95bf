"""What the API server refuses by itself, by the chart's ValidatingAdmissionPolicies: no operator runs in these tests."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.chart import Helm
from e2e.controlplane.build import Binaries
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.harness import OPERATOR_NAMESPACE, a_pod, operator_rbac
from e2e.objects import API_VERSION, SANDBOX_LABEL, Document, a_baseline, a_policy, a_registration

OPERATOR: Final = (f"--as=system:serviceaccount:{OPERATOR_NAMESPACE}:supervisor-middleware",)
ALLOWED: Final = "middleware.openshell.io/allow-removal=true"
BREAK_GLASS: Final = "middleware.openshell.io:break-glass"
BACKUP: Final = "system:serviceaccount:velero:velero"
_CRDS: Final = Path(__file__).resolve().parents[1] / "crds"


@pytest.fixture(scope="module")
def plane(binaries: Binaries, helm: Helm) -> Iterator[ControlPlane]:
    """Of its own: the guards hold for the whole cluster, and would refuse what other tests do."""
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as started:
        crds = [f"--filename={path}" for path in sorted(_CRDS.glob("*.yaml"))]
        started.kubectl("apply", "--server-side", *crds)
        started.kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
        started.kubectl("create", "namespace", OPERATOR_NAMESPACE)
        started.kubectl("apply", "-f", "-", input=operator_rbac(OPERATOR_NAMESPACE))
        guards = helm.template(
            namespace=OPERATOR_NAMESPACE, only="guards.yaml", values={"guards": {"revisionWriters": [BACKUP]}}
        )
        started.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(guards))
        _await_each_guard(started)
        yield started


# ------------------------------------------------------------------------------------------------------ registrations


def test_a_registration_in_use_is_not_deleted_and_says_what_to_do(plane: ControlPlane) -> None:
    _apply(plane, a_registration("in-use"))
    _set_policies(plane, "in-use", 3)
    said = _refused(plane, "delete", "smw", "in-use")
    assert "SupervisorMiddleware in-use is in use (policies: 3)" in said
    assert f"annotate it with {ALLOWED}" in said

    plane.kubectl("annotate", "smw", "in-use", ALLOWED)
    plane.kubectl("delete", "smw", "in-use")


def test_a_registration_that_nobody_uses_is_deleted(plane: ControlPlane) -> None:
    _apply(plane, a_registration("unused"), a_registration("fresh"))
    _set_policies(plane, "unused", 0)
    plane.kubectl("delete", "smw", "unused", "fresh")


def test_deleting_all_registrations_leaves_those_in_use(plane: ControlPlane) -> None:
    _apply(plane, a_registration("kept"), a_registration("gone"))
    _set_policies(plane, "kept", 1)
    _refused(plane, "delete", "smw", "--all")
    assert plane.kubectl("get", "smw", "-o", "name").stdout.split() == [
        "supervisormiddleware.middleware.openshell.io/kept"
    ]
    plane.kubectl("annotate", "smw", "kept", ALLOWED)
    plane.kubectl("delete", "smw", "kept")


@pytest.mark.parametrize("value", ["false", "True", ""])
def test_only_true_allows_a_removal(plane: ControlPlane, value: str) -> None:
    name = f"annotated-{value.lower() or 'empty'}"
    _apply(plane, a_baseline(name, selector={"tier": name}))
    plane.kubectl("annotate", "csbp", name, f"middleware.openshell.io/allow-removal={value}")
    _refused(plane, "delete", "csbp", name)


def test_a_baseline_is_deleted_only_when_annotated(plane: ControlPlane) -> None:
    _apply(plane, a_baseline("demanded", selector={"tier": "prod"}))
    assert "is the platform's baseline" in _refused(plane, "delete", "csbp", "demanded")
    assert "is the platform's baseline" in _refused(plane, "delete", "csbp", "demanded", "--dry-run=server")

    plane.kubectl("annotate", "csbp", "demanded", ALLOWED)
    plane.kubectl("delete", "csbp", "demanded")


# ---------------------------------------------------------------------------------------------------------- revisions


def test_revisions_are_written_by_the_operator_alone(plane: ControlPlane) -> None:
    said = _refused(plane, "create", "-f", "-", input=_revision("forged"))
    assert "PolicyRevisions are written by the operator only" in said
    plane.kubectl("create", "-f", "-", *OPERATOR, input=_revision("accepted"))
    _refused(plane, "annotate", "prev", "accepted", "somebody=was-here")
    _refused(plane, "label", "prev", "accepted", "somebody=was-here")
    _refused(plane, "create", "-f", "-", "--as=mallory", "--as-group=system:masters", input=_revision("forged"))

    same_name_elsewhere = "--as=system:serviceaccount:tenant:supervisor-middleware"
    _refused(plane, "create", "-f", "-", same_name_elsewhere, "--as-group=system:masters", input=_revision("forged"))


@pytest.mark.parametrize("who", [("admin", BREAK_GLASS), (BACKUP, "system:authenticated")])
def test_a_backup_is_restored_by_those_who_are_named(plane: ControlPlane, who: tuple[str, str]) -> None:
    user, group = who
    groups = ("--as-group=system:masters", f"--as-group={group}")
    name = f"restored-{len(user)}"
    plane.kubectl("create", "-f", "-", f"--as={user}", *groups, input=_revision(name))


def test_revisions_are_deleted_and_collected_by_anybody_who_may(plane: ControlPlane) -> None:
    plane.kubectl("create", "-f", "-", *OPERATOR, input=_revision("rubbish"))
    plane.kubectl("create", "-f", "-", *OPERATOR, input=_revision("waited-for"))
    plane.kubectl("delete", "prev", "rubbish")
    # The garbage collector takes its finalizer away: an UPDATE, and not by the operator.
    plane.kubectl("delete", "prev", "waited-for", "--cascade=foreground", "--timeout=60s")


def test_a_rewrite_of_what_is_there_passes(plane: ControlPlane) -> None:
    """As a migration of storage does."""
    plane.kubectl("create", "-f", "-", *OPERATOR, input=_revision("migrated"))
    stored = plane.kubectl("get", "prev", "migrated", "-o", "json").stdout
    plane.kubectl("replace", "-f", "-", input=stored)


# --------------------------------------------------------------------------------------------------------------- Pods


@pytest.fixture
def sandbox(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace with Pod `agent`, a sandbox."""
    name = plane.create_namespace("sandboxes")
    _apply(plane, a_pod("agent", namespace=name, sandbox="agent-0"), a_policy("outbound", namespace=name))
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.mark.parametrize("change", [f"{SANDBOX_LABEL}=agent-1", f"{SANDBOX_LABEL}-", f"{SANDBOX_LABEL}="])
def test_the_sandbox_of_a_pod_stays(plane: ControlPlane, sandbox: str, change: str) -> None:
    said = _refused(plane, "label", "pod", "agent", change, "--overwrite", "-n", sandbox)
    assert "is its sandbox's identity and cannot be changed or removed" in said


def test_an_empty_sandbox_label_is_not_removed_either(plane: ControlPlane, sandbox: str) -> None:
    _apply(plane, a_pod("empty", namespace=sandbox, sandbox=""))
    _refused(plane, "label", "pod", "empty", f"{SANDBOX_LABEL}-", "-n", sandbox)


def test_the_sandbox_of_a_pod_does_not_change_through_its_status(plane: ControlPlane, sandbox: str) -> None:
    patch = json.dumps({"metadata": {"labels": {SANDBOX_LABEL: "agent-1"}}})
    _refused(plane, "patch", "pod", "agent", "-n", sandbox, "--subresource=status", "--type=merge", "-p", patch)


def test_everything_else_of_a_sandbox_pod_changes(plane: ControlPlane, sandbox: str) -> None:
    plane.kubectl("label", "pod", "agent", "team=research", "-n", sandbox)
    plane.kubectl("label", "pod", "agent", "team-", "-n", sandbox)
    status = json.dumps({"status": {"phase": "Running"}})
    plane.kubectl("patch", "pod", "agent", "-n", sandbox, "--subresource=status", "--type=merge", "-p", status)
    plane.kubectl("delete", "pod", "agent", "-n", sandbox, "--cascade=foreground", "--timeout=60s", "--force")


def test_a_pod_without_a_sandbox_is_not_our_business(plane: ControlPlane, sandbox: str) -> None:
    _apply(
        plane, {**a_pod("plain", namespace=sandbox, sandbox="x"), "metadata": {"name": "plain", "namespace": sandbox}}
    )
    plane.kubectl("label", "pod", "plain", "app=web", "-n", sandbox)
    plane.kubectl("label", "pod", "plain", "app-", "-n", sandbox)


def test_a_namespace_with_sandboxes_and_policies_goes_without_an_operator(plane: ControlPlane, sandbox: str) -> None:
    plane.kubectl("delete", "namespace", sandbox, "--timeout=60s")
    found = plane.kubectl("get", "namespace", sandbox, check=False)
    assert "not found" in found.stderr


def test_removing_a_kind_is_not_held_up_by_its_objects(plane: ControlPlane) -> None:
    """The last one: an administrator who removes a CustomResourceDefinition means it."""
    _apply(plane, a_baseline("last", selector={"tier": "last"}))
    name = "clustersandboxpolicies.middleware.openshell.io"
    plane.kubectl("delete", "crd", name, "--timeout=60s")
    assert "not found" in plane.kubectl("get", "crd", name, check=False).stderr


# ------------------------------------------------------------------------------------------------------------- helpers


def _apply(plane: ControlPlane, *documents: Document) -> None:
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(documents))


def _refused(plane: ControlPlane, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as in kubectl()
    done = plane.kubectl(*arguments, input=input, check=False)
    assert done.returncode != 0, f"done, but should have been refused: {done.stdout}"
    assert "ValidatingAdmissionPolicy" in done.stderr, done.stderr
    return done.stderr


def _set_policies(plane: ControlPlane, name: str, count: int) -> None:
    patch = json.dumps({"status": {"policies": count}})
    plane.kubectl("patch", "smw", name, "--subresource=status", "--type=merge", "-p", patch)


def _revision(name: str) -> str:
    policy = {"kind": "SandboxPolicy", "namespace": "agents", "name": "outbound", "uid": "8c1f", "generation": 1}
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "PolicyRevision",
        "metadata": {"name": name},
        "spec": {
            "policy": {**policy, "createdAt": "2026-01-01T00:00:00+00:00"},
            "epoch": 1,
            "revision": 1,
            "digest": "sha256:" + "0" * 64,
            "stages": 1,
            "content": "eJwDAAAAAAE=",
        },
    }
    return yaml.safe_dump(document)


def _await_each_guard(plane: ControlPlane) -> None:
    """The API server takes notice of a policy a moment after it was stored: until each refuses, tests prove nothing."""
    namespace = plane.create_namespace("probe")
    _apply(
        plane,
        a_registration("probe"),
        a_baseline("probe", selector={"tier": "probe"}),
        a_pod("probe", namespace=namespace, sandbox="probe"),
    )
    _set_policies(plane, "probe", 1)
    for arguments, given in (
        (("delete", "smw", "probe", "--dry-run=server"), None),
        (("delete", "csbp", "probe", "--dry-run=server"), None),
        (("create", "-f", "-", "--dry-run=server"), _revision("probe")),
        (("label", "pod", "probe", f"{SANDBOX_LABEL}-", "-n", namespace, "--dry-run=server"), None),
    ):
        _await(partial(_is_refused, plane, arguments, given))
    plane.kubectl("annotate", "smw/probe", "csbp/probe", ALLOWED)
    plane.kubectl("delete", "smw/probe", "csbp/probe")
    plane.kubectl("delete", "namespace", namespace, "--wait=false")


def _is_refused(plane: ControlPlane, arguments: Sequence[str], given: str | None) -> bool:
    return "ValidatingAdmissionPolicy" in plane.kubectl(*arguments, input=given, check=False).stderr


def _await(is_so: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.2)

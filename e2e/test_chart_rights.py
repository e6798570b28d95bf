"""Who may do what once the chart is installed: tenants, administrators, the operator; and nothing more."""

import json
from collections.abc import Iterator
from typing import Final

import pytest

from e2e.chart import Document, Helm
from e2e.controlplane.build import Binaries
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.objects import GROUP
from e2e.release import NAMESPACE, Release

CLUSTER_KINDS: Final = ("supervisormiddlewares", "clustersandboxpolicies")
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "update", "patch", "delete")
_ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:supervisor-middleware"
_STATUS_ACCOUNT: Final = f"{_ACCOUNT}-status"


@pytest.fixture(scope="module")
def release(binaries: Binaries, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Of its own: roles hold for the whole cluster. No operator runs."""
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as plane:
        plane.kubectl("create", "namespace", NAMESPACE)
        installed = Release(plane, helm, tmp_path_factory.mktemp("release"), address="192.0.2.1")
        installed.install()
        yield installed


def test_tenants_write_their_policies_and_nothing_else(release: Release) -> None:
    plane = release.plane
    own, other = plane.create_namespace("own"), plane.create_namespace("other")
    for role in ("admin", "edit", "view"):
        plane.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user=tenant-{role}", "-n", own)
    plane.kubectl(
        "create", "clusterrolebinding", "smw-admins", "--clusterrole=supervisor-middleware-admin", "--user=boss"
    )
    plane.kubectl("create", "clusterrolebinding", "wide", "--clusterrole=admin", "--user=wide-admin")
    release.wait(
        "the roles are aggregated",
        lambda: _may(release, ("tenant-view", "list", "sandboxpolicies", own)) == [True],
    )
    writers = ("tenant-admin", "tenant-edit", "boss", "wide-admin")
    granted = [
        *((user, verb, "sandboxpolicies", own) for user in writers for verb in (*_READ, *_WRITE)),
        *(("tenant-view", verb, "sandboxpolicies", own) for verb in _READ),
        *(("boss", verb, kind, "") for verb in (*_READ, *_WRITE) for kind in CLUSTER_KINDS),
        *(("boss", verb, "policyrevisions", "") for verb in _READ),
        *((user, "list", "sandboxpolicies/supervisors", own) for user in (*writers, "tenant-view")),
        *((user, "list", "sandboxpolicies/supervisors", "") for user in ("boss", "wide-admin", _STATUS_ACCOUNT)),
    ]
    tenants = ("tenant-admin", "tenant-edit", "tenant-view", "wide-admin")
    denied = [
        *(("tenant-view", verb, "sandboxpolicies", own) for verb in _WRITE),
        *((user, verb, "sandboxpolicies", other) for user in tenants[:3] for verb in (*_READ, *_WRITE)),
        *((user, "update", "sandboxpolicies/status", own) for user in (*tenants, "boss")),
        *(
            (user, verb, kind, "")
            for user in tenants
            for verb in (*_READ, *_WRITE)
            for kind in (*CLUSTER_KINDS, "policyrevisions")
        ),
        *(("boss", verb, "policyrevisions", "") for verb in _WRITE),
        *((user, "list", "sandboxpolicies/supervisors", where) for user in tenants[:3] for where in (other, "")),
        *((_STATUS_ACCOUNT, "list", kind, "") for kind in ("sandboxpolicies", "pods", *CLUSTER_KINDS)),
        *((_STATUS_ACCOUNT, verb, "sandboxpolicies/supervisors", "") for verb in _WRITE),
    ]
    assert _wrongly(release, granted, wanted=True) == []
    assert _wrongly(release, denied, wanted=False) == []


def test_the_operator_may_do_no_more_than_it_needs(release: Release) -> None:
    kinds = ("supervisormiddlewares", "clustersandboxpolicies", "sandboxpolicies")
    denied = [
        *((_ACCOUNT, verb, kind, "default") for verb in _WRITE for kind in kinds),
        *((_ACCOUNT, verb, "policyrevisions", "") for verb in ("update", "patch")),
        *((_ACCOUNT, verb, "secrets", "default") for verb in (*_READ, *_WRITE)),
        *((_ACCOUNT, verb, "secrets", NAMESPACE) for verb in ("list", "watch", "update", "patch", "delete")),
        *((_ACCOUNT, verb, "configmaps", "default") for verb in ("get", "list", "create", "update", "delete")),
        *((_ACCOUNT, verb, "pods", "default") for verb in _WRITE),
        *((_ACCOUNT, verb, "namespaces", "") for verb in _WRITE),
        *((_ACCOUNT, verb, "validatingwebhookconfigurations", "") for verb in (*_READ, *_WRITE)),
        *((_ACCOUNT, verb, "validatingadmissionpolicies", "") for verb in (*_READ, *_WRITE)),
        *((_ACCOUNT, verb, "customresourcedefinitions", "") for verb in _WRITE),
        *((_ACCOUNT, "create", kind, "default") for kind in ("pods/exec", "serviceaccounts/token", "deployments")),
        *((_ACCOUNT, verb, "clusterroles", "") for verb in ("create", "update", "bind", "escalate")),
        (_ACCOUNT, "impersonate", "users", ""),
    ]
    assert _wrongly(release, denied, wanted=False) == []


def _may(release: Release, *questions: tuple[str, str, str, str]) -> list[bool]:
    """Whether each user may do each verb to a resource in a namespace."""
    reviews = []
    for user, verb, resource, namespace in questions:
        kind, _, sub = resource.partition("/")
        group = {
            "secrets": "",
            "configmaps": "",
            "pods": "",
            "namespaces": "",
            "serviceaccounts": "",
            "users": "",
            "deployments": "apps",
            "validatingwebhookconfigurations": "admissionregistration.k8s.io",
            "validatingadmissionpolicies": "admissionregistration.k8s.io",
            "customresourcedefinitions": "apiextensions.k8s.io",
            "clusterroles": "rbac.authorization.k8s.io",
        }.get(kind, GROUP)
        attributes = {"verb": verb, "group": group, "resource": kind, "subresource": sub, "namespace": namespace}
        groups = ["system:authenticated", *(["system:serviceaccounts"] if user.startswith("system:") else [])]
        reviews.append(
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "metadata": {},
                "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
            }
        )
    answers = release.plane.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(_list(reviews))).stdout
    return [bool(answer["status"]["allowed"]) for answer in _each(answers)]


def _each(text: str) -> Iterator[Document]:
    """JSON documents, one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        yield found


def _list(items: list[Document]) -> Document:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _wrongly(
    release: Release, questions: list[tuple[str, str, str, str]], *, wanted: bool
) -> list[tuple[str, str, str, str]]:
    answers = _may(release, *questions)
    assert len(answers) == len(questions)
    return [q for q, answer in zip(questions, answers, strict=True) if answer is not wanted]

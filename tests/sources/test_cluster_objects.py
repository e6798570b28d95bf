"""Bodies become values and values bodies, without an API server."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.compact import CompactObject
from supervisor_middleware.model.revision import Position
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, SANDBOX_LABEL, Sandbox
from supervisor_middleware.model.snapshot import Kind, Snapshot, Stored, StoredRevision
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.cluster_bodies import Notice, event_body, revision_body, status_body
from supervisor_middleware.sources.cluster_objects import Namespace, convert, identity_of
from tests.builders import a_baseline, a_baseline_revision, a_policy, a_revision, an_entry

Body = dict[str, Any]


def a_body(name: str = "thing", *, namespace: str | None = "team-a", uid: str = "u-1", **fields: Any) -> Body:
    metadata: Body = {
        "name": name,
        "uid": uid,
        "resourceVersion": "17",
        "generation": 3,
        "creationTimestamp": "2026-03-01T12:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    if namespace:
        metadata["namespace"] = namespace
    return {"metadata": metadata | fields.pop("metadata", {}), **fields}


def a_pod_body(label: str | None = "agent", **fields: Any) -> Body:
    metadata: Body = {"labels": {"app": "x"} | ({} if label is None else {SANDBOX_LABEL: label})}
    return a_body(metadata=metadata | fields.pop("metadata", {}), status={"phase": "Running"}, **fields)


def a_stored_revision(*, number: int = 2, epoch: int = 5, **fields: Any) -> StoredRevision:
    revision = replace(a_revision(an_entry(config={"secret": "canary"}), an_entry("second", order=1)), uid="u-1")
    made = StoredRevision(number=number, epoch=epoch, digest=revision.digest, revision=revision)
    return replace(made, **fields)


def a_revision_body(**spec: Any) -> Body:
    body = revision_body(a_stored_revision())
    return a_body(body["metadata"]["name"], namespace=None, uid="r-1", spec=body["spec"] | spec)


def test_a_policy_keeps_what_was_typed_and_drops_the_rest() -> None:
    annotations = {"middleware.openshell.io/allow-removal": "true", "kubectl.kubernetes.io/last-applied": "{}"}
    body = a_body(spec={"any": ["thing"]}, status={"stages": 1}, metadata={"annotations": annotations})
    assert convert(Kind.SANDBOX_POLICY, body) == Stored(
        subject=Subject(kind="SandboxPolicy", namespace="team-a", name="thing"),
        uid="u-1",
        generation=3,
        created_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        resource_version="17",
        spec={"any": ["thing"]},
        status={"stages": 1},
        annotations={"middleware.openshell.io/allow-removal": "true"},
    )


def test_what_policies_have_in_common_is_kept_once() -> None:
    first, second = (convert(Kind.SANDBOX_POLICY, a_body(uid=uid, spec={"n": [1]})) for uid in ("u-1", "u-2"))
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert isinstance(first.spec, CompactObject)
    assert first.spec == second.spec
    assert first.created_at is second.created_at
    assert first.annotations is second.annotations


def test_an_entry_that_revisions_have_in_common_is_one() -> None:
    one, other = convert(Kind.POLICY_REVISION, a_revision_body()), convert(Kind.POLICY_REVISION, a_revision_body())
    assert isinstance(one, StoredRevision)
    assert isinstance(other, StoredRevision)
    assert [id(e) for e in one.revision.entries] == [id(e) for e in other.revision.entries]


def test_a_large_entry_is_kept_for_its_revision_alone() -> None:
    large = a_revision(an_entry(config={"words": "x" * 4096}))
    stored = StoredRevision(number=1, epoch=1, digest=large.digest, revision=large)
    body = a_body(stored.name, namespace=None, uid="r-1", spec=revision_body(stored)["spec"])
    one, other = convert(Kind.POLICY_REVISION, body), convert(Kind.POLICY_REVISION, body)
    assert one == other == stored
    assert isinstance(one, StoredRevision)
    assert isinstance(other, StoredRevision)
    assert one.revision.entries[0] is not other.revision.entries[0]


def test_a_registration_has_no_namespace_and_may_have_no_status_yet() -> None:
    found = convert(Kind.SUPERVISOR_MIDDLEWARE, a_body(namespace=None, spec={}))
    assert isinstance(found, Stored)
    assert found.subject == Subject(kind="SupervisorMiddleware", name="thing")
    assert found.status == {}


def test_a_revision_survives_the_way_there_and_back() -> None:
    assert convert(Kind.POLICY_REVISION, a_revision_body()) == a_stored_revision()


def test_a_baselines_revision_has_no_namespace_and_survives_the_way_there_and_back() -> None:
    revision = a_baseline_revision(labels={"tier": "prod"}, position=Position.LAST, skips=("db.example.com",))
    stored = StoredRevision(number=1, epoch=5, digest=revision.digest, revision=revision)
    body = revision_body(stored)
    assert body["spec"]["policy"]["namespace"] == ""
    assert convert(Kind.POLICY_REVISION, a_body(stored.name, namespace=None, spec=body["spec"])) == stored


def test_a_baseline_has_no_namespace() -> None:
    found = convert(Kind.CLUSTER_SANDBOX_POLICY, a_body("platform", namespace=None, spec={}))
    assert isinstance(found, Stored)
    assert found.subject == Subject(kind="ClusterSandboxPolicy", name="platform")


def test_of_a_namespace_its_labels_count_and_its_name_is_one() -> None:
    labels = {"tier": "prod"}
    body = a_body("team-a", namespace=None, spec={"finalizers": []}, metadata={"labels": labels})
    assert convert(Kind.NAMESPACE, body) == Namespace(name="team-a", labels={**labels, NAMESPACE_LABEL: "team-a"})
    bare = a_body("team-b", namespace=None)
    assert convert(Kind.NAMESPACE, bare) == Namespace(name="team-b", labels={NAMESPACE_LABEL: "team-b"})


@pytest.mark.parametrize(
    "spec",
    [
        {"content": "bm90IHpsaWI="},
        {"content": "%"},
        {"digest": "sha256:" + 64 * "0"},
        {"revision": 3},
        {"policy": {}},
        {"policy": None},
        {"epoch": "many"},
    ],
)
def test_a_corrupt_revision_is_refused_without_its_content(spec: Body) -> None:
    with pytest.raises(InvalidInput) as refusal:
        convert(Kind.POLICY_REVISION, a_revision_body(**spec))
    assert "canary" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_labelled_pod_is_a_sandbox() -> None:
    labels = {"app": "x", SANDBOX_LABEL: "agent"}
    assert convert(Kind.SANDBOX, a_pod_body()) == Sandbox(
        namespace="team-a", name="agent", uid="u-1", pod="thing", labels=labels
    )


@pytest.mark.parametrize("label", [None, "", "Agent", "a_b", "-a"])
def test_a_pod_without_a_valid_name_for_its_sandbox_counts_for_nothing(label: str | None) -> None:
    assert convert(Kind.SANDBOX, a_pod_body(label)) is None


@pytest.mark.parametrize(
    "body",
    [
        a_pod_body() | {"status": {"phase": "Succeeded"}},
        a_pod_body() | {"status": {"phase": "Failed"}},
        a_pod_body() | {"status": {"phase": "Unknown"}},
        a_pod_body(metadata={"deletionTimestamp": "2026-03-01T12:00:00Z"}),
    ],
)
def test_a_pod_that_ended_or_is_being_deleted_counts_for_nothing(body: Body) -> None:
    body["metadata"].setdefault("labels", {SANDBOX_LABEL: "agent"})
    assert convert(Kind.SANDBOX, body) is None


@pytest.mark.parametrize("body", [{}, {"metadata": None}, {"metadata": {"name": "x"}}, {"metadata": {"uid": "x"}}])
def test_an_object_without_name_or_uid_has_no_identity(body: Body) -> None:
    with pytest.raises(InvalidInput):
        identity_of(body)


def test_the_known_epoch_is_the_highest_of_policies_and_revisions() -> None:
    assert Snapshot().highest_epoch == 0
    policies = tuple(replace(a_policy(), status={"accepted": {"epoch": epoch}}) for epoch in (3, 9))
    unset = (a_policy(), replace(a_policy(), status={"accepted": None}), replace(a_policy(), status={"accepted": {}}))
    revisions = (a_stored_revision(epoch=7),)
    assert Snapshot(policies=(*policies, *unset), revisions=revisions).highest_epoch == 9
    assert Snapshot(revisions=revisions).highest_epoch == 7


def test_a_status_body_names_the_state_that_was_read() -> None:
    stored = replace(a_policy(), resource_version="17")
    body = status_body(stored, {"stages": 1})
    assert body["metadata"] == {
        "name": stored.subject.name,
        "namespace": stored.subject.namespace,
        "uid": stored.uid,
        "resourceVersion": "17",
    }


def test_the_status_and_the_events_of_a_baseline_are_of_the_cluster() -> None:
    stored = replace(a_baseline(), resource_version="17")
    metadata = status_body(stored, {})["metadata"]
    assert metadata == {"name": "platform", "uid": stored.uid, "resourceVersion": "17"}
    notice = Notice(uid=stored.uid, reason="Accepted", message="accepted", weight="Normal")
    event = event_body(stored.subject, notice, instance="operator-0", now=datetime(2026, 3, 1, tzinfo=UTC))
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {
        "apiVersion": "middleware.openshell.io/v1alpha1",
        "kind": "ClusterSandboxPolicy",
        "name": "platform",
        "uid": stored.uid,
    }


def test_an_event_fits_whatever_is_said() -> None:
    notice = Notice(uid="u-1", reason="R" * 200, message="é" * 2000, weight="Warning")
    subject = Subject(kind="SupervisorMiddleware", name="a" * 199 + "." + "b" * 50)
    body = event_body(subject, notice, instance="operator-0", now=datetime(2026, 3, 1, tzinfo=UTC))
    assert len(body["note"].encode()) <= 1024
    assert body["note"].endswith("...")
    assert len(body["reason"]) == 128
    assert body["metadata"] == {"generateName": "a" * 199 + "-", "namespace": "default"}
    assert body["eventTime"] == "2026-03-01T00:00:00.000000Z"
    assert "namespace" not in body["regarding"]

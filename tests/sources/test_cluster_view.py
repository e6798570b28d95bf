"""Events and lists in any order give what the cluster holds."""

from typing import Any

import pytest

from supervisor_middleware.model.snapshot import Kind
from supervisor_middleware.sources.cluster_objects import ObjectIdentity, identity_of
from supervisor_middleware.sources.cluster_view import ClusterView
from tests.sources.test_cluster_objects import a_body, a_pod_body, a_revision_body

Body = dict[str, Any]
POLICY = Kind.SANDBOX_POLICY


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def view(reports: list[str]) -> ClusterView:
    return ClusterView(report=lambda _kind, name, _reason: reports.append(name))


def policy(name: str = "one", *, version: int, uid: str = "u-1") -> Body:
    return a_body(name, uid=uid, spec={}, metadata={"resourceVersion": str(version)})


def listed(*bodies: Body) -> list[ObjectIdentity]:
    return [identity_of(body) for body in bodies]


def names(view: ClusterView) -> list[str]:
    return [stored.subject.name for stored in view.values(POLICY)]


def test_values_are_sorted_and_the_same_object_until_something_changes(view: ClusterView) -> None:
    assert view.admit(POLICY, policy("two", version=2, uid="u-2"))
    assert view.admit(POLICY, policy("one", version=3))
    assert names(view) == ["one", "two"]
    before = view.values(POLICY)
    assert not view.admit(POLICY, policy("one", version=3))
    assert view.values(POLICY) is before


def test_an_earlier_state_is_no_news(view: ClusterView) -> None:
    view.admit(POLICY, policy(version=5))
    assert not view.admit(POLICY, policy(version=4))
    assert view.values(POLICY)[0].resource_version == "5"


def test_what_is_gone_does_not_come_back_by_a_late_event_or_an_older_list(view: ClusterView) -> None:
    body = policy(version=5)
    view.admit(POLICY, body)
    assert view.remove(POLICY, identity_of(policy(version=6)))
    assert not view.admit(POLICY, body)
    assert not view.newest_unseen(POLICY, listed(body))
    assert view.prune(POLICY, listed(body), version=5) == ()
    assert not view.admit(POLICY, body)
    assert names(view) == []


def test_a_successor_of_the_same_name_is_not_removed_with_its_predecessor(view: ClusterView) -> None:
    view.admit(POLICY, policy(version=5))
    assert view.admit(POLICY, policy(version=9, uid="u-2"))
    assert not view.remove(POLICY, identity_of(policy(version=8)))
    assert not view.admit(POLICY, policy(version=7))
    assert [stored.uid for stored in view.values(POLICY)] == ["u-2"]


def test_a_list_drops_what_it_does_not_hold_unless_that_is_newer(view: ClusterView) -> None:
    view.admit(POLICY, policy("old", version=5))
    view.admit(POLICY, policy("new", version=12, uid="u-2"))
    assert view.prune(POLICY, [], version=10) == ("team-a/old",)
    assert names(view) == ["new"]
    assert not view.admit(POLICY, policy("old", version=6)), "a late event raises no ghost"


def test_a_list_that_knows_more_says_so(view: ClusterView) -> None:
    view.admit(POLICY, policy(version=5))
    assert not view.newest_unseen(POLICY, listed(policy(version=5)))
    assert not view.newest_unseen(POLICY, listed(policy(version=4)))
    assert view.newest_unseen(POLICY, listed(policy(version=6))) == 6
    assert view.newest_unseen(POLICY, listed(policy("two", version=2, uid="u-2"))) == 2


def test_a_pod_that_only_reports_its_progress_is_no_change(view: ClusterView) -> None:
    assert view.admit(Kind.SANDBOX, a_pod_body())
    assert not view.admit(Kind.SANDBOX, a_pod_body(metadata={"resourceVersion": "18", "labels": _labels()}))
    ended = a_pod_body(metadata={"resourceVersion": "19", "labels": _labels()}) | {"status": {"phase": "Failed"}}
    assert view.admit(Kind.SANDBOX, ended)
    assert view.values(Kind.SANDBOX) == ()
    assert not view.newest_unseen(Kind.SANDBOX, listed(ended))


def a_namespace(name: str = "team-a", *, version: int, labels: dict[str, str] | None = None, **metadata: Any) -> Body:
    given = {"resourceVersion": str(version), "labels": labels or {}, **metadata}
    return a_body(name, namespace=None, uid=f"u-{name}", metadata=given)


def test_of_a_namespace_only_its_labels_are_a_change(view: ClusterView) -> None:
    assert view.admit(Kind.NAMESPACE, a_namespace(version=1, labels={"tier": "test"}))
    before = view.namespaces()
    assert not view.admit(Kind.NAMESPACE, a_namespace(version=2, labels={"tier": "test"}, annotations={"a": "b"}))
    assert view.namespaces() is before
    assert view.admit(Kind.NAMESPACE, a_namespace(version=3, labels={"tier": "prod"}))
    assert view.namespaces()["team-a"]["tier"] == "prod"
    assert view.remove(Kind.NAMESPACE, identity_of(a_namespace(version=4)))
    assert view.namespaces() == {}


def test_a_namespace_that_did_not_change_keeps_the_same_labels_while_others_come_and_go(view: ClusterView) -> None:
    view.admit(Kind.NAMESPACE, a_namespace(version=1, labels={"tier": "test"}))
    before = view.namespaces()["team-a"]
    view.admit(Kind.NAMESPACE, a_namespace(version=2, labels={"tier": "test"}, annotations={"a": "b"}))
    view.admit(Kind.NAMESPACE, a_namespace("team-b", version=3))
    assert view.namespaces().keys() == {"team-a", "team-b"}
    assert view.namespaces()["team-a"] is before


def test_policies_are_of_both_kinds_and_one_tuple_until_one_changes(view: ClusterView) -> None:
    view.admit(POLICY, policy(version=1))
    view.admit(Kind.CLUSTER_SANDBOX_POLICY, a_body("platform", namespace=None, uid="u-2", spec={}))
    before = view.policies()
    assert [p.subject.name for p in before] == ["one", "platform"]
    assert view.policies() is before
    view.admit(Kind.SANDBOX, a_pod_body())
    assert view.policies() is before
    view.admit(POLICY, policy(version=2))
    assert view.policies() is not before
    assert view.policies()[1] is before[1]


def test_a_corrupt_revision_is_reported_once_and_skipped(view: ClusterView, reports: list[str]) -> None:
    body = a_revision_body(content="bm90IHpsaWI=")
    assert not view.admit(Kind.POLICY_REVISION, body)
    assert not view.admit(Kind.POLICY_REVISION, body)
    assert reports == ["u-1-2"]
    assert view.values(Kind.POLICY_REVISION) == ()
    assert view.unusable(Kind.POLICY_REVISION) == 1


def test_a_revision_is_unpacked_once(view: ClusterView) -> None:
    body = a_revision_body()
    view.admit(Kind.POLICY_REVISION, body)
    (before,) = view.values(Kind.POLICY_REVISION)
    relabelled = a_revision_body(content="never looked at again")
    relabelled["metadata"]["resourceVersion"] = "99"
    assert not view.admit(Kind.POLICY_REVISION, relabelled)
    assert view.values(Kind.POLICY_REVISION)[0] is before


def _labels() -> dict[str, str]:
    labels: dict[str, str] = a_pod_body()["metadata"]["labels"]
    return labels

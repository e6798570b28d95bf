"""The revision in force of each policy: looked up once a change."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from supervisor_middleware.control import acceptances as subject
from supervisor_middleware.control.acceptances import Acceptances
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from tests.builders import a_policy, a_revision

KEPT = StoredRevision(number=1, epoch=1, digest=a_revision().digest, revision=a_revision())


def named(policy: Stored, *, revision: int = 1) -> Stored:
    return replace(policy, status={"accepted": {"revision": revision, "digest": KEPT.digest}})


def test_the_same_state_is_not_looked_at_twice() -> None:
    acceptances = Acceptances()
    snapshot = Snapshot(policies=(named(a_policy()),), revisions=(KEPT,))
    first = acceptances.of(snapshot)
    assert first.of(a_policy().uid) is KEPT
    assert first.bindings == {e.binding for e in KEPT.revision.entries}
    assert acceptances.of(replace(snapshot, skipped=1)) is first


def test_only_policies_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[object]()
    reference = subject.accepted_reference

    def noted(status: Mapping[str, Any]) -> tuple[int, str] | None:
        read.append(status)
        return reference(status)

    monkeypatch.setattr(subject, "accepted_reference", noted)
    acceptances, stays = Acceptances(), replace(named(a_policy("stays")), uid="stays")
    before = Snapshot(policies=(stays, a_policy()), revisions=(KEPT,))
    assert acceptances.of(before).by_policy == {}
    read.clear()
    after = replace(before, policies=(stays, named(a_policy())))
    assert acceptances.of(after).by_policy == {a_policy().uid: KEPT}
    assert len(read) == 1


def test_a_revision_that_comes_later_or_goes_is_heeded() -> None:
    acceptances, policies = Acceptances(), (named(a_policy()),)
    assert acceptances.of(Snapshot(policies=policies)).by_policy == {}
    assert acceptances.of(Snapshot(policies=policies, revisions=(KEPT,))).by_policy == {a_policy().uid: KEPT}
    assert acceptances.of(Snapshot(policies=policies)).by_policy == {}

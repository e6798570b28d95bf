"""Values that hold little and must hold it right: what a stage failure says, how a bundle key reads."""

from dataclasses import replace

import pytest

from supervisor_middleware.model.evaluation import FailureCode, StageFailed
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import TransportPhase
from supervisor_middleware.model.snapshot import BundleKey, Snapshot, StoredRevision
from tests.builders import a_connection, a_policy, a_revision, some_settings


def test_a_stage_failure_carries_its_code_and_nothing_else() -> None:
    failure = StageFailed(FailureCode.TIMEOUT)
    assert failure.code is FailureCode.TIMEOUT
    assert str(failure) == "middleware_timeout"


def test_a_bundle_key_reads_as_where_the_bundle_is() -> None:
    assert str(BundleKey("Secret", "team-a", "ca", "ca.crt")) == "Secret team-a/ca key ca.crt"


def test_a_sandbox_is_known_by_its_pod_or_by_its_name() -> None:
    assert Sandbox(namespace="a", name="b", uid="u").key == "u"
    assert Sandbox(namespace="a", name="b").key == "a/b"


def test_the_empty_snapshot_knows_of_nothing() -> None:
    assert not Snapshot().unknown
    assert Snapshot().problems.is_valid


def test_a_stored_revision_is_named_by_its_policy_and_number() -> None:
    revision = a_revision(uid="3f2a")
    assert StoredRevision(number=7, epoch=1, digest=revision.digest, revision=revision).name == "3f2a-7"


def test_the_highest_epoch_is_of_whatever_was_written_last() -> None:
    revision = a_revision()
    stored = StoredRevision(number=1, epoch=3, digest=revision.digest, revision=revision)
    accepted = replace(a_policy(), status={"accepted": {"epoch": 5}})
    odd = [replace(a_policy(), status=s) for s in ({}, {"accepted": None}, {"accepted": {"epoch": "9"}})]
    assert Snapshot(revisions=(stored,)).highest_epoch == 3
    assert Snapshot(revisions=(stored,), policies=(*odd, accepted)).highest_epoch == 5
    assert Snapshot(policies=tuple(odd)).highest_epoch == 0


@pytest.mark.parametrize("phase", TransportPhase)
def test_plaintext_is_permitted_in_the_first_transport_phase_alone(phase: TransportPhase) -> None:
    settings = some_settings(transport_phase=phase)
    assert settings.permits(a_connection("https://svc.test:443"))
    assert settings.permits(a_connection("http://svc.test:80")) == (phase is TransportPhase.PREVIEW)

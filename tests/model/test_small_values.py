"""Values that hold little and must hold it right: what a stage failure says, how a bundle key reads."""

from supervisor_middleware.model.evaluation import FailureCode, StageFailed
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import BundleKey, Snapshot


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

"""Statuses are written in Kubernetes spelling and take nothing they do not know."""

import pytest
from pydantic import ValidationError

from supervisor_middleware.model.statuses import STATUSES, SandboxPolicyStatus, SupervisorMiddlewareStatus


def test_a_status_is_written_in_camel_case() -> None:
    written = SupervisorMiddlewareStatus(observed_generation=3, binding_count=2).model_dump(by_alias=True)
    assert written["observedGeneration"] == 3
    assert written["bindingCount"] == 2


def test_a_status_has_no_unknown_field() -> None:
    with pytest.raises(ValidationError):
        SandboxPolicyStatus.model_validate({"config": "secret"})


def test_kinds_with_a_status_are_known_by_name() -> None:
    assert set(STATUSES) == {"SupervisorMiddleware", "SandboxPolicy", "ClusterSandboxPolicy"}

"""What somebody asks for, as text that anybody may have written."""

import pytest

from supervisor_middleware.pki.rotation_requests import Request, Stage, new_request, parse_request


@pytest.mark.parametrize("force", [None, *Stage])
def test_a_request_is_read_as_it_was_written(force: Stage | None) -> None:
    request = new_request("2026-03-01T12:00:00+00:00", force=force)
    assert parse_request(request.identifier) == request
    assert request.force is force


def test_the_same_moment_with_and_without_force_is_two_requests() -> None:
    assert new_request("x").identifier != new_request("x", force=Stage.PREPARED).identifier


def test_people_may_write_any_short_word() -> None:
    assert parse_request("now") == Request(identifier="now")


@pytest.mark.parametrize(
    "text", ["", "x" * 65, "a b", "a\nb", "x force:nonsense", " force:prepared", "a/b", "x force:prepared "]
)
def test_what_is_no_request_is_none(text: str) -> None:
    assert parse_request(text) is None

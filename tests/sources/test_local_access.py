"""How `smw status` reaches standalone: a file for its owner alone, and one token."""

import stat
from pathlib import Path

import pytest

from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.sources.local_access import (
    ACCESS_FILE,
    LocalAccess,
    LocalEndpoint,
    read_endpoint,
    remove_endpoint,
    write_endpoint,
)

ENDPOINT = LocalEndpoint(address="127.0.0.1:8443", token="t0p-secret")


def test_what_was_written_is_read_by_the_owner_alone(tmp_path: Path) -> None:
    write_endpoint(tmp_path, ENDPOINT)
    assert read_endpoint(tmp_path) == ENDPOINT
    assert stat.S_IMODE((tmp_path / ACCESS_FILE).stat().st_mode) == 0o600
    remove_endpoint(tmp_path)
    remove_endpoint(tmp_path)
    assert read_endpoint(tmp_path) is None


def test_the_token_is_in_no_repr() -> None:
    assert "secret" not in repr(ENDPOINT) + repr(LocalAccess(token=ENDPOINT.token))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"address": "a"}', '{"address": "a", "token": ""}', "\x00"])
def test_what_is_no_access_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / ACCESS_FILE).write_text(content)
    with pytest.raises(InvalidInput, match=ACCESS_FILE):
        read_endpoint(tmp_path)


async def test_one_token_sees_everything_and_no_other_anything() -> None:
    access = LocalAccess(token=ENDPOINT.token)
    assert await access.viewer(ENDPOINT.token, namespace="")
    for other in ("", "t0p-secre", "t0p-secret ", "x"):
        with pytest.raises(Untrusted):
            await access.viewer(other, namespace="team-a")

"""What the API server answers becomes an error by whose move it is, and nothing of a body gets into it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor_middleware.errors import Bug, InvalidInput, Unavailable
from supervisor_middleware.sources.cluster_api import (
    ClusterApi,
    Conflict,
    Expired,
    Forbidden,
    NotFound,
    Refused,
    _answer,
    connect,
)
from supervisor_middleware.sources.cluster_connection import ApiCredentials, Connection

_CANARY = "canary-secret"


def answer(status: int, **body: object) -> object:
    return _answer("GET /x", status=status, content=json.dumps({"message": _CANARY, **body}).encode())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unavailable),
        (403, Forbidden),
        (404, NotFound),
        (408, Unavailable),
        (409, Conflict),
        (410, Expired),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
def test_what_may_pass_is_unavailable(status: int, kind: type[Unavailable]) -> None:
    with pytest.raises(kind) as error:
        answer(status, reason="SomeReason")
    assert type(error.value) is kind
    assert str(error.value) == f"GET /x: the API server answered {status} SomeReason"


@pytest.mark.parametrize("status", [302, 400, 405, 415, 422])
def test_what_we_sent_wrongly_is_our_bug_and_names_fields_only(status: int) -> None:
    causes = [{"field": "status.accepted", "message": _CANARY}, {"field": f"spec.x {_CANARY}"}, {"message": _CANARY}]
    with pytest.raises(Refused) as error:
        answer(status, reason=f"{_CANARY}!", details={"causes": causes})
    assert isinstance(error.value, Bug)
    assert error.value.fields == {"status.accepted"}
    assert _CANARY not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'"text"', b"\xff"])
def test_an_answer_that_is_no_object_is_unavailable(content: bytes) -> None:
    with pytest.raises(Unavailable):
        _answer("GET /x", status=200, content=content)
    with pytest.raises(Unavailable, match="502"):
        _answer("GET /x", status=502, content=content)


def test_a_token_is_not_shown() -> None:
    assert _CANARY not in repr(ApiCredentials(server="https://x", token=_CANARY))


@pytest.mark.parametrize("text", ["", "not: [yaml", "kind: Config", "{}"])
async def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="kubeconfig: check the file"):
        await connect(path)
    with pytest.raises(InvalidInput, match="absent: no such file"):
        await connect(tmp_path / "absent")


async def test_outside_a_cluster_a_kubeconfig_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidInput, match="outside a cluster, pass a kubeconfig"):
        await connect(None)


class Sent(Connection):
    """A connection that only notes what was sent."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def send(self, method: str, path: str, *, check: Callable[[], None], **_: object) -> tuple[int, bytes]:
        check()
        self.methods.append(method)
        return 200, b"{}"


def refuse() -> None:
    raise Unavailable("not any more")


async def test_who_may_not_write_any_more_reads_on_and_sends_nothing_else() -> None:
    connection = Sent()
    free = ClusterApi(connection)
    guarded = free.guarded(refuse)
    for write in (
        guarded.create("/x", {}),
        guarded.replace("/x", {}),
        guarded.apply("/x", {}),
        guarded.delete("/x"),
    ):
        with pytest.raises(Unavailable, match="not any more"):
            await write
    assert await guarded.get("/x") == {}
    await free.delete("/x")
    assert connection.methods == ["GET", "DELETE"]

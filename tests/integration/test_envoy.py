"""Real Envoy, real ext_proc: what an agent sends, what the chain sees, what arrives upstream."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from supervisor_middleware.audit.events import Bypassed, Failed
from supervisor_middleware.model.evaluation import (
    ExistingHeader,
    FailureCode,
    HeaderMutation,
    OnError,
    RemoveHeader,
    WriteHeader,
)
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.supervisor.exchange import (
    Allowed,
    Cause,
    Denied,
    Outcome,
    Overflowed,
    Request,
    Unread,
    Whole,
)
from tests.fakes.ext_proc_runtime import a_stage
from tests.fakes.http_peers import Lines, chunked
from tests.integration.proxied import Proxied, a_proxy
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = b"host: api.example.com\r\n"
GET = b"GET /v1/x?q=1 HTTP/1.1\r\n" + HOST
CHUNKED = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
UPGRADE = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: a\r\n"
AT_CAP = b"x" * MAX_BODY_BYTES
NAME = "x-openshell-middleware-note"
DENIED = Denied(cause=Cause.DENIED, key="guard", policy="team/policy", reason_code="pii")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _shared() -> AsyncIterator[Proxied]:
    async with a_proxy() as proxied:
        yield proxied


@pytest.fixture
def proxy(_shared: Proxied) -> Proxied:
    _shared.reset()
    return _shared


def post(body: bytes, *, host: bytes = b"api.example.com") -> bytes:
    return b"POST /v1/x HTTP/1.1\r\nhost: %s\r\ncontent-length: %d\r\n\r\n%s" % (host, len(body), body)


def write(value: str, on_existing: ExistingHeader = ExistingHeader.APPEND, *, name: str = NAME) -> WriteHeader:
    return WriteHeader(name=name, value=value, on_existing=on_existing)


async def test_a_host_without_a_chain_passes_untouched_and_unseen(proxy: Proxied) -> None:
    lines = b"X-A: 1\r\nx-b: 2\r\nx-a: 3\r\nauthorization: Bearer t\r\nx-latin: \xe9\r\n"
    request = b"POST /v1/x?q=1 HTTP/1.1\r\nhost: other.example\r\n" + lines + b"content-length: 3\r\n\r\nabc"
    assert (await proxy.send(request)).status == 200
    (arrived,) = proxy.upstream.requests
    assert arrived.start == "POST /v1/x?q=1 HTTP/1.1"
    expected: Lines = [("x-a", "1"), ("x-b", "2"), ("x-a", "3"), ("authorization", "Bearer t"), ("x-latin", "\xe9")]
    assert sorted(arrived.lines) == sorted([("host", "other.example"), ("content-length", "3"), *expected])
    assert arrived.body == b"abc"
    assert proxy.runtime.requests == []


async def test_a_body_without_a_chain_streams_past_whatever_its_size(proxy: Proxied) -> None:
    assert (await proxy.send(post(AT_CAP * 2, host=b"other.example"))).status == 200
    (arrived,) = proxy.upstream.requests
    assert arrived.body == AT_CAP * 2
    assert proxy.runtime.requests == []


async def test_a_stage_sees_the_request_as_the_agent_made_it(proxy: Proxied) -> None:
    assert (await proxy.send(GET + b"x-a: 1\r\nx-forwarded-proto: https\r\nx-a: 2\r\n\r\n")).status == 200
    (seen,) = proxy.runtime.requests
    assert (seen.target.scheme, seen.target.host, seen.target.port) == ("http", "api.example.com", 80)
    assert (seen.target.method, seen.target.path, seen.target.query) == ("GET", "/v1/x", "q=1")
    assert [(h.name, h.value) for h in seen.headers] == [("x-a", "1"), ("x-a", "2")]
    assert seen.body == Whole(b"")
    assert sorted(proxy.upstream.requests[0].lines) == [("host", "api.example.com"), ("x-a", "1"), ("x-a", "2")]


@pytest.mark.parametrize("body", [b"hello, longer than before", b"", b"x"])
@pytest.mark.parametrize("sent", [(post(b"secret"),), (post(b"secret")[:-6], b"secret")], ids=["at once", "in parts"])
async def test_a_replaced_body_is_framed_by_its_own_length(
    proxy: Proxied, sent: tuple[bytes, ...], body: bytes
) -> None:
    proxy.runtime.answer = lambda _: Allowed(body=body)
    assert (await proxy.send(*sent)).status == 200
    assert proxy.runtime.requests[0].body == Whole(b"secret")
    (arrived,) = proxy.upstream.requests
    assert arrived.body == body
    assert arrived.values("content-length") == [str(len(body))]
    assert arrived.values("transfer-encoding") == []


@pytest.mark.parametrize("body", [b"hello, longer than before", b"", None])
@pytest.mark.parametrize("parts", [1, 2])
async def test_a_chunked_body_is_seen_whole_and_stays_chunked(proxy: Proxied, parts: int, body: bytes | None) -> None:
    proxy.runtime.answer = lambda _: Allowed(body=body)
    head = (CHUNKED,) if parts == 2 else ()
    assert (await proxy.send(*head, (b"" if head else CHUNKED) + chunked(b"secret", 2))).status == 200
    assert proxy.runtime.requests[0].body == Whole(b"secret")
    (arrived,) = proxy.upstream.requests
    assert arrived.body == (b"secret" if body is None else body)
    assert arrived.values("content-length") == []


async def test_trailers_of_a_chunked_body_reach_nobody(proxy: Proxied) -> None:
    assert (await proxy.send(CHUNKED + b"1\r\na\r\n0\r\nx-trailer: secret\r\n\r\n")).status == 200
    assert proxy.upstream.requests[0].body == b"a"
    assert proxy.upstream.requests[0].values("x-trailer") == []


async def test_a_body_given_to_a_request_without_one_is_sent(proxy: Proxied) -> None:
    proxy.runtime.answer = lambda _: Allowed(body=b"new")
    assert (await proxy.send(GET + b"\r\n")).status == 200
    assert proxy.upstream.requests[0].body == b"new"


@pytest.mark.parametrize(
    ("present", "mutations", "expected"),
    [
        (["0"], (write("1"),), ["0", "1"]),
        ([], (write("1"), write("2")), ["1", "2"]),
        (["0", "1"], (write("2", ExistingHeader.OVERWRITE),), ["2"]),
        ([], (write("2", ExistingHeader.OVERWRITE),), ["2"]),
        (["0", "1"], (write("2", ExistingHeader.SKIP),), ["0", "1"]),
        ([], (write("2", ExistingHeader.SKIP), write("3", ExistingHeader.SKIP)), ["2"]),
        (["0", "1"], (RemoveHeader(name=NAME),), []),
        ([], (RemoveHeader(name=NAME),), []),
        (["0"], (write("1"), RemoveHeader(name=NAME), write("2"), write("3")), ["2", "3"]),
        (["0"], (RemoveHeader(name=NAME), write("1", ExistingHeader.SKIP)), ["1"]),
        ([], (write(""), write("\xe9")), ["", "\xe9"]),
    ],
)
async def test_header_mutations_end_as_the_chain_says(
    proxy: Proxied, present: list[str], mutations: tuple[HeaderMutation, ...], expected: list[str]
) -> None:
    proxy.runtime.answer = lambda _: Allowed(mutations=mutations)
    lines = b"".join(b"%s: %s\r\n" % (NAME.encode(), value.encode()) for value in present)
    assert (await proxy.send(GET + lines + b"x-other: kept\r\n\r\n")).status == 200
    assert (await proxy.send(post(b"abc").replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n", 1))).status == 200
    for arrived in proxy.upstream.requests:
        assert arrived.values(NAME) == expected
    assert proxy.upstream.requests[0].values("x-other") == ["kept"]


async def test_added_lines_of_several_names_keep_their_order(proxy: Proxied) -> None:
    other = NAME + "-2"
    proxy.runtime.answer = lambda _: Allowed(mutations=(write("1"), write("2", name=other), write("3")))
    await proxy.send(GET + b"\r\n")
    assert proxy.upstream.requests[0].lines[-3:] == [(NAME, "1"), (other, "2"), (NAME, "3")]


async def test_a_header_nominated_by_connection_ends_here(proxy: Proxied) -> None:
    await proxy.send(
        GET + b"connection: x-hop, keep-alive\r\nx-hop: secret\r\nproxy-authorization: Basic c2VjcmV0\r\n\r\n"
    )
    assert proxy.upstream.requests[0].lines == [("host", "api.example.com")]


@pytest.mark.parametrize("request_", [GET + b"\r\n", post(b"abc"), CHUNKED + chunked(b"abc")])
async def test_a_denied_request_gets_the_platforms_answer_and_goes_nowhere(proxy: Proxied, request_: bytes) -> None:
    proxy.runtime.answer = lambda _: DENIED
    response = await proxy.send(request_)
    assert response.status == 403
    assert response.values("content-type") == ["application/json"]
    assert json.loads(response.body) == {
        "error": "middleware_denied",
        "detail": "middleware_denied:guard:pii",
        "policy": "team/policy",
        "middleware": "guard",
        "reason_code": "pii",
    }
    assert proxy.upstream.requests == []


async def test_a_denied_head_request_has_no_body(proxy: Proxied) -> None:
    proxy.runtime.answer = lambda _: DENIED
    response = await proxy.send(b"HEAD /v1/x HTTP/1.1\r\n" + HOST + b"\r\n", method="HEAD")
    assert response.status == 403


async def test_a_supervisor_without_a_generation_refuses_every_host(proxy: Proxied) -> None:
    proxy.runtime.stages = None
    response = await proxy.send(post(b"abc", host=b"other.example"))
    assert response.status == 503
    assert json.loads(response.body)["error"] == "supervisor_not_configured"
    assert proxy.upstream.requests == []


@pytest.mark.parametrize("request_", [post(AT_CAP), CHUNKED + chunked(AT_CAP)], ids=["declared", "chunked"])
async def test_a_body_at_the_cap_is_inspected_and_passes(proxy: Proxied, request_: bytes) -> None:
    assert (await proxy.send(request_)).status == 200
    assert proxy.runtime.requests[0].body == Whole(AT_CAP)
    assert proxy.upstream.requests[0].body == AT_CAP


async def test_a_replacement_at_the_cap_passes(proxy: Proxied) -> None:
    proxy.runtime.answer = lambda _: Allowed(body=AT_CAP)
    assert (await proxy.send(post(b"abc"))).status == 200
    assert proxy.upstream.requests[0].body == AT_CAP


async def test_a_declared_body_over_the_cap_is_refused_unread_when_a_stage_is_required(proxy: Proxied) -> None:
    response = await proxy.send(post(AT_CAP + b"x")[:-MAX_BODY_BYTES])
    assert response.status == 403
    assert json.loads(response.body)["detail"] == f"middleware_failed: {FailureCode.REQUEST_BODY_OVER_CAPACITY}"
    assert proxy.runtime.requests[0].body == Unread(MAX_BODY_BYTES + 1)
    assert proxy.upstream.requests == []
    assert [type(e) for e in proxy.events] == [Failed]


async def test_a_declared_body_over_the_cap_streams_past_when_every_stage_permits(proxy: Proxied) -> None:
    proxy.runtime.stages = (a_stage(on_error=OnError.FAIL_OPEN), a_stage("b", on_error=OnError.FAIL_OPEN))
    assert (await proxy.send(post(AT_CAP + b"x"))).status == 200
    assert proxy.upstream.requests[0].body == AT_CAP + b"x"
    assert [type(e) for e in proxy.events] == [Bypassed, Bypassed]


@pytest.mark.parametrize("size", [1, MAX_BODY_BYTES], ids=["a little", "far"])
@pytest.mark.parametrize("on_error", list(OnError))
async def test_a_chunked_body_over_the_cap_is_always_refused(proxy: Proxied, on_error: OnError, size: int) -> None:
    proxy.runtime.stages = (a_stage(on_error=on_error),)
    async with proxy.client() as client:
        sending = asyncio.create_task(client.send(CHUNKED + chunked(AT_CAP + b"x" * size)))
        response = await client.response()
        await asyncio.gather(sending, return_exceptions=True)
    assert response.status == 403
    assert json.loads(response.body)["detail"] == f"middleware_failed: {FailureCode.REQUEST_BODY_OVER_CAPACITY}"
    assert [r.body for r in proxy.runtime.requests] == [Overflowed()]
    assert proxy.upstream.requests == []


async def test_a_smaller_cap_is_the_chains_own(proxy: Proxied) -> None:
    proxy.runtime.stages = (a_stage(max_body_bytes=3), a_stage("b", max_body_bytes=4))
    assert (await proxy.send(post(b"1234"))).status == 200
    assert (await proxy.send(post(b"12345"))).status == 403
    assert (await proxy.send(CHUNKED + chunked(b"12345"))).status == 403
    assert [r.body for r in proxy.runtime.requests] == [Whole(b"1234"), Unread(5), Overflowed()]


async def test_a_body_that_does_not_come_is_refused_and_frees_its_place(proxy: Proxied) -> None:
    assert (await proxy.send(post(b"abc")[:-1])).status == 403
    assert proxy.upstream.requests == []
    assert proxy.runtime.pinned == 0


async def test_an_evaluation_that_raises_refuses(proxy: Proxied) -> None:
    def broken(_: Request) -> Outcome:
        raise ValueError("the secret of the request")

    proxy.runtime.answer = broken
    with capture_logs() as logs:
        response = await proxy.send(post(b"abc"))
    assert response.status == 403
    assert json.loads(response.body)["error"] == "middleware_failed"
    assert [log["event"] for log in logs] == ["a request was refused after an error"]
    assert "secret" not in str(logs)


async def test_a_client_that_leaves_cancels_the_evaluation(proxy: Proxied) -> None:
    proxy.runtime.gate = asyncio.Event()
    async with proxy.client() as client:
        await client.send(post(b"abc"))
        await eventually(lambda: proxy.runtime.requests)
    await eventually(lambda: proxy.runtime.pinned == 0)
    assert proxy.runtime.cancelled == 1
    assert proxy.upstream.requests == []

"""Real Envoy: which traffic is inspected under which host, and what never slips past (OS-SCO)."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from supervisor_middleware.audit.events import Bypassed, Failed
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.supervisor.envoy_config import DynamicForward
from supervisor_middleware.supervisor.exchange import Allowed, Cause, Denied, Whole
from tests.fakes.ext_proc_runtime import a_stage
from tests.fakes.http_peers import chunked
from tests.integration.proxied import NO_GRACE, Proxied, a_proxy
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = b"host: api.example.com\r\n"
GET = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
HANDSHAKE = b"GET /ws HTTP/1.1\r\n" + HOST + b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: a\r\n"
DENIED = Denied(cause=Cause.DENIED, key="guard", policy="team/policy")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _fixed() -> AsyncIterator[Proxied]:
    async with a_proxy() as proxied:
        yield proxied


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _dynamic() -> AsyncIterator[Proxied]:
    async with a_proxy(lambda _: DynamicForward()) as proxied:
        yield proxied


@pytest.fixture
def proxy(_fixed: Proxied) -> Proxied:
    _fixed.reset()
    return _fixed


@pytest.fixture
def forward(_dynamic: Proxied) -> Proxied:
    _dynamic.reset()
    return _dynamic


@pytest.mark.parametrize(
    ("host", "port"),
    [
        (b"api.example.com", 80),
        (b"API.Example.COM", 80),
        (b"api.example.com.", 80),
        (b"api.example.com:8443", 8443),
        (b"Api.example.com.:8443", 8443),
        (b"api.example.com:", 80),
    ],
)
async def test_every_spelling_of_a_host_selects_its_chain(proxy: Proxied, host: bytes, port: int) -> None:
    assert (await proxy.send(b"GET / HTTP/1.1\r\nhost: %s\r\n\r\n" % host)).status == 200
    (seen,) = proxy.runtime.requests
    assert (seen.target.host, seen.target.port) == ("api.example.com", port)


@pytest.mark.parametrize(
    "lines",
    [
        b"host: user@api.example.com",
        b"host: api.example.com\r\nhost: other.example",
        b"host: other.example\r\nhost: api.example.com",
        b"host: other.example,api.example.com",
        b"host: ",
        b"host: api.example.com:99999",
        b"host: api%2eexample.com",
        b"x-no-host: 1",
    ],
)
async def test_an_authority_that_cannot_be_matched_is_refused(proxy: Proxied, lines: bytes) -> None:
    proxy.runtime.stages = ()
    response = await proxy.send(b"GET / HTTP/1.1\r\n%s\r\n\r\n" % lines)
    assert response.status in {400, 403}
    assert proxy.upstream.requests == []


async def test_an_absolute_form_is_inspected_under_its_own_authority(proxy: Proxied) -> None:
    assert (await proxy.send(b"GET http://api.example.com/x?q HTTP/1.1\r\nhost: other.example\r\n\r\n")).status == 200
    (seen,) = proxy.runtime.requests
    assert (seen.target.host, seen.target.path, seen.target.query) == ("api.example.com", "/x", "q")
    (arrived,) = proxy.upstream.requests
    assert arrived.start == "GET /x?q HTTP/1.1"
    assert arrived.values("host") == ["api.example.com"]


async def test_a_path_is_seen_as_it_is_forwarded(proxy: Proxied) -> None:
    await proxy.send(b"GET /a/../b//c%2Fd HTTP/1.1\r\n" + HOST + b"\r\n")
    assert proxy.runtime.requests[0].target.path == "/b//c%2Fd"
    assert proxy.upstream.requests[0].start == "GET /b//c%2Fd HTTP/1.1"


async def test_pipelined_requests_are_inspected_one_by_one(proxy: Proxied) -> None:
    proxy.runtime.answer = lambda r: DENIED if r.target.path == "/no" else Allowed()
    async with proxy.client() as client:
        await client.send(GET + GET.replace(b"/v1/x", b"/no") + GET)
        assert [(await client.response()).status for _ in range(3)] == [200, 403, 200]
    assert len(proxy.runtime.requests) == 3
    assert len(proxy.upstream.requests) == 2
    assert len({r.context.request_id for r in proxy.runtime.requests}) == 3


async def test_http_1_0_is_inspected(proxy: Proxied) -> None:
    assert (await proxy.send(b"GET /v1/x HTTP/1.0\r\n" + HOST + b"\r\n")).status == 200
    assert len(proxy.runtime.requests) == 1


async def test_two_framings_of_one_body_are_refused(proxy: Proxied) -> None:
    head = b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
    assert (await proxy.send(head + chunked(b"abc"))).status == 400
    assert proxy.upstream.requests == []


async def test_a_client_waiting_for_100_continue_gets_it_before_the_body_is_inspected(proxy: Proxied) -> None:
    async with proxy.client() as client:
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 3\r\nexpect: 100-continue\r\n\r\n")
        assert (await client.response()).status == 100
        await client.send(b"abc")
        assert (await client.response()).status == 200
    assert proxy.runtime.requests[0].body == Whole(b"abc")
    assert proxy.upstream.requests[0].values("expect") == []


async def test_a_websocket_handshake_is_evaluated_and_frames_are_not(proxy: Proxied) -> None:
    async with proxy.client() as client:
        await client.send(HANDSHAKE + b"\r\n")
        assert (await client.response()).status == 101
        await client.send(b"frame")
        assert await client.reader.readexactly(10) == b"echo:frame"
    (seen,) = proxy.runtime.requests
    assert seen.body == Whole(b"")
    assert proxy.runtime.pinned == 0


async def test_a_denied_websocket_handshake_opens_nothing(proxy: Proxied) -> None:
    proxy.runtime.answer = lambda _: DENIED
    assert (await proxy.send(HANDSHAKE + b"\r\n")).status == 403
    assert proxy.upstream.requests == []


async def test_bytes_behind_a_handshake_reach_no_upstream_that_refuses_it(proxy: Proxied) -> None:
    proxy.upstream.refuse_upgrades = True
    async with proxy.client() as client:
        await client.send(HANDSHAKE + b"\r\n" + b"POST /smuggled HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.response()
        await client.reader.read()
    assert [r.start for r in proxy.upstream.requests] == ["GET /ws HTTP/1.1"]


@pytest.mark.parametrize("handshake", [HANDSHAKE, HANDSHAKE.replace(b"GET", b"POST")])
async def test_a_handshake_with_a_body_cannot_be_inspected(proxy: Proxied, handshake: bytes) -> None:
    response = await proxy.send(handshake + b"content-length: 6\r\n\r\nsecret")
    assert response.status == 403
    assert json.loads(response.body)["detail"] == "middleware_failed: traffic_uninspectable"
    assert proxy.upstream.requests == []


@pytest.mark.parametrize("upgrade", [b"h2c", b"tcp", b"websocket, h2c"])
async def test_no_other_upgrade_leads_past_inspection(proxy: Proxied, upgrade: bytes) -> None:
    proxy.runtime.answer = lambda _: DENIED
    head = b"GET / HTTP/1.1\r\n" + HOST + b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAAA\r\n"
    assert (await proxy.send(head + b"upgrade: %s\r\n\r\n" % upgrade)).status == 403
    assert proxy.upstream.requests == []


async def test_there_is_no_tunnel_to_a_fixed_upstream(proxy: Proxied) -> None:
    proxy.runtime.stages = ()
    assert (await proxy.send(b"CONNECT other.example:80 HTTP/1.1\r\nhost: other.example\r\n\r\n")).status == 404


async def test_a_forward_proxy_reaches_the_host_it_inspected(forward: Proxied) -> None:
    forward.runtime.stages = (a_stage(include=("127.0.0.1",)),)
    url = b"http://127.0.0.1:%d/x" % forward.upstream.port
    assert (await forward.send(b"GET %s HTTP/1.1\r\nhost: other.example\r\n\r\n" % url)).status == 200
    assert forward.runtime.requests[0].target.port == forward.upstream.port
    assert len(forward.upstream.requests) == 1


@pytest.mark.parametrize(
    "host",
    [
        *("127.000.000.001", "0.0.0.0", "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::]"),
    ],
)
@pytest.mark.parametrize("request_", ["GET http://%s/ HTTP/1.1", "GET / HTTP/1.1", "CONNECT %s HTTP/1.1"])
async def test_no_other_spelling_of_an_address_leads_past_its_chain(
    forward: Proxied, host: str, request_: str
) -> None:
    forward.runtime.stages = (a_stage(include=("127.0.0.1",)),)
    forward.runtime.answer = lambda _: DENIED
    authority = f"{host}:{forward.upstream.port}"
    start = request_.replace("%s", authority)
    assert (await forward.send(f"{start}\r\nhost: {authority}\r\n\r\n".encode())).status == 403
    assert forward.upstream.requests == []


@pytest.mark.parametrize("on_error", list(OnError))
async def test_a_tunnel_follows_the_rule_for_what_no_stage_can_be_shown(forward: Proxied, on_error: OnError) -> None:
    forward.runtime.stages = (a_stage(include=("127.0.0.1",), on_error=on_error),)
    async with forward.client() as client:
        await client.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % forward.upstream.port)
        answer = await client.response("HEAD")
        if on_error is OnError.FAIL_CLOSED:
            assert answer.status == 403
            assert [type(e) for e in forward.events] == [Failed]
            return
        await client.send(b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.response()).status == 200
    assert [type(e) for e in forward.events] == [Bypassed]
    assert forward.runtime.requests == []


async def test_a_tunnel_without_a_chain_passes(forward: Proxied) -> None:
    forward.runtime.stages = ()
    async with forward.client() as client:
        await client.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % forward.upstream.port)
        assert (await client.response("HEAD")).status == 200
    assert forward.events == []


async def test_without_a_supervisor_nothing_passes_and_with_it_again_everything_does(proxy: Proxied) -> None:
    other = GET.replace(b"api.example.com", b"other.example")
    await proxy.server.stop(NO_GRACE)
    assert [(await proxy.send(request)).status for request in (GET, other)] == [503, 503]
    assert proxy.upstream.requests == []
    await proxy.server.start()
    async with asyncio.timeout(10):
        while (await proxy.send(other)).status != 200:  # noqa: ASYNC110 - Envoy reconnects in its own time
            await asyncio.sleep(0.05)


async def test_a_supervisor_that_ends_in_the_middle_of_an_evaluation_refuses_it(proxy: Proxied) -> None:
    proxy.runtime.gate = asyncio.Event()
    async with proxy.client() as client:
        await client.send(GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\nabc"))
        await eventually(lambda: proxy.runtime.requests)
        await proxy.server.stop(timedelta(0))
        assert (await client.response()).status == 503
    assert proxy.upstream.requests == []
    await proxy.server.start()

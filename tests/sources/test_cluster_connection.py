"""The connection to an API server: what throttles us is waited for, and a CA that was replaced is read anew."""

import asyncio
import base64
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from aiohttp import web

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.sources.cluster_api import connect
from supervisor_middleware.sources.cluster_connection import LONGEST_PAUSE, _proxy, _retry_after

Handler = Callable[[web.Request], Awaitable[web.Response]]


def a_kubeconfig(path: Path, *, url: str, ca: trustme.CA | None = None) -> Path:
    data = {} if ca is None else {"certificate-authority-data": base64.b64encode(ca.cert_pem.bytes()).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **data}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> Any:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def test_nothing_is_sent_before_the_api_server_asked_for_it(tmp_path: Path) -> None:
    came: list[float] = []

    async def handle(_: web.Request) -> web.Response:
        came.append(time.monotonic())
        if len(came) == 1:
            return web.json_response({}, status=429, headers={"Retry-After": "1"})
        return web.json_response({})

    async with (
        serving(handle) as port,
        await connect(a_kubeconfig(tmp_path / "k", url=f"http://127.0.0.1:{port}")) as api,
    ):
        with pytest.raises(Unavailable, match="429"):
            await api.get("/x")
        await asyncio.gather(api.get("/x"), api.guarded(lambda: None).create("/x", {}))
    assert len(came) == 3
    assert min(came[1:]) - came[0] >= 0.99


@pytest.mark.parametrize(
    ("value", "seconds"), [("1", 1.0), ("0", 0.0), ("3600", LONGEST_PAUSE), (None, 1.0), ("soon", 1.0), ("-1", 1.0)]
)
def test_a_pause_is_bounded(value: str | None, seconds: float) -> None:
    assert _retry_after(value) == seconds


async def test_a_ca_that_was_replaced_in_its_file_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_middleware.sources.cluster_connection.RENEWAL_SECONDS", 0.0)
    old, new = trustme.CA(), trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    new.issue_cert("127.0.0.1").configure_cert(server)

    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Something"})

    async with serving(handle, tls=server) as port:
        path = a_kubeconfig(tmp_path / "k", url=f"https://127.0.0.1:{port}", ca=old)
        async with await connect(path) as api:
            other = api.guarded(lambda: None)
            for _ in range(2):
                with pytest.raises(Unavailable, match="not of the CA that we have"):
                    await api.get("/x")
            path.write_text("not: [yaml")
            with pytest.raises(Unavailable, match="not of the CA that we have"):
                await other.get("/x")
            before = api.renewals

            a_kubeconfig(path, url=f"https://127.0.0.1:{port}", ca=new)
            with pytest.raises(Unavailable, match="not of the CA that we have"):
                await other.get("/x")
            assert await api.get("/x") == {"kind": "Something"}
            assert await other.get("/x") == {"kind": "Something"}
            assert api.renewals == before + 1
            renewed = await api.credentials()
            assert renewed.ca_path is not None
            trusted = await asyncio.to_thread(Path(renewed.ca_path).read_bytes)
            assert trusted == new.cert_pem.bytes()


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://api.example.com:6443", "http://proxy.example.com:3128"),
        ("https://10.0.0.1", None),
        ("https://api.internal:6443", None),
        ("http://api.example.com", None),
    ],
)
def test_the_environments_proxy_is_used_where_it_is_meant_to_be(
    server: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.1,.internal")
    assert _proxy(server) == proxy


async def test_no_netrc_is_read_for_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str | None]()

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret")
    monkeypatch.setenv("NETRC", str(netrc))
    async with (
        serving(handle) as port,
        await connect(a_kubeconfig(tmp_path / "k", url=f"http://127.0.0.1:{port}")) as api,
    ):
        await api.get("/x")
    assert seen == ["Bearer t"]

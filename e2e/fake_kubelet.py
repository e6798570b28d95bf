"""A kubelet that forwards ports and does nothing else, for a Node and a Pod that exist as objects.

The API server carries `pods/portforward` to it as to a real one: WebSocket, `v4.channel.k8s.io`.
"""

import asyncio
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from e2e.controlplane.cluster import ControlPlane
from supervisor_middleware.pki.authority import Authority


async def _forward(request: web.Request) -> web.WebSocketResponse:
    port = int(request.query["port"])
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    for channel in (0, 1):
        await socket.send_bytes(bytes((channel,)) + struct.pack("<H", port))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        await socket.send_bytes(b"\x01" + f"error forwarding port {port}: {error}".encode())
        return socket

    async def back() -> None:
        while data := await reader.read(65536):
            await socket.send_bytes(b"\x00" + data)
        await socket.close()

    task = asyncio.create_task(back())
    try:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\x00":
                writer.write(message.data[1:])
                await writer.drain()
    finally:
        task.cancel()
        writer.close()
    return socket


@contextmanager
def kubelet(plane: ControlPlane, *, node: str, directory: Path) -> Iterator[None]:
    """Serve as the kubelet of `node`, which is created, as long as the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kubelet")
    thread.start()
    runner: Any = None
    try:
        runner, port = asyncio.run_coroutine_threadsafe(_serve(directory), loop).result(10)
        plane.kubectl(
            "create", "-f", "-", input=f'{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{node}"}}}}'
        )
        status = (
            f'{{"status": {{"addresses": [{{"type": "InternalIP", "address": "127.0.0.1"}}],'
            f' "daemonEndpoints": {{"kubeletEndpoint": {{"Port": {port}}}}}}}}}'
        )
        plane.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", status)
        yield
    finally:
        plane.kubectl("delete", "node", node, "--ignore-not-found", "--wait=false")
        if runner is not None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(directory: Path) -> tuple[web.AppRunner, int]:
    now = datetime.now(UTC)
    authority = Authority.create(trust_domain="kubelet.example.internal", now=now)
    own = authority.issue_server(ip_addresses=(ip_address("127.0.0.1"),), now=now)
    (directory / "kubelet.pem").write_bytes(own.certificate_chain_pem + own.private_key_pem.reveal())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "kubelet.pem")
    application = web.Application()
    application.router.add_get("/portForward/{namespace}/{pod}", _forward)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    return runner, runner.addresses[0][1]

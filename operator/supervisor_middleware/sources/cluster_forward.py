"""A port of a Pod as a local address, through the API server: what `kubectl port-forward` does.

Each connection is one WebSocket; on it every message begins with the number of its channel, data or errors. Whoever
may not, or finds nobody there, reads why in `Forwarder.problem`: its client only sees connections end.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.identifiers import plain_text
from supervisor_middleware.sources.cluster_api import ClusterApi
from supervisor_middleware.sources.cluster_connection import CONNECT_SECONDS, ApiCredentials
from supervisor_middleware.sources.cluster_kinds import core_path

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_ERROR: Final = 1
_CHUNK: Final = 64 * 1024
_MAX_PROBLEM: Final = 200


@dataclass(slots=True, eq=False)
class Forwarder:
    """The local end. `problem` is why the last connection failed, if it did."""

    url: str
    session: aiohttp.ClientSession
    address: str = ""
    problem: str = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either end has had enough."""
        try:
            async with self.session.ws_connect(self.url, protocols=(_PROTOCOL,), max_msg_size=0) as socket:
                sending = asyncio.create_task(_send(reader, socket))
                try:
                    await self._receive(socket, writer)
                finally:
                    sending.cancel()
        except aiohttp.WSServerHandshakeError as error:
            self.problem = f"the API server answered {error.status}"
        except (aiohttp.ClientError, OSError) as error:
            self.problem = f"the API server cannot be reached ({type(error).__name__})"
        finally:
            writer.close()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        # The first message of each channel says which port it is of.
        announced = set[int]()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, content = message.data[0], message.data[1:]
            if channel not in announced:
                announced.add(channel)
            elif channel == _DATA:
                writer.write(content)
                await writer.drain()
            elif channel == _ERROR:
                self.problem = plain_text(content.decode(errors="replace"), limit=_MAX_PROBLEM)
                return


@asynccontextmanager
async def forwarding(api: ClusterApi, *, namespace: str, pod: str, port: int) -> AsyncIterator[Forwarder]:
    """Carry connections to `port` of `pod` as long as the block runs.

    Raises:
        InvalidInput: the kubeconfig's certificates cannot be used.
        Unavailable: the token cannot be read now.
    """
    credentials = await api.credentials()
    bearer = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
    server = urlsplit(credentials.server)
    scheme = "wss" if server.scheme == "https" else "ws"
    path = server.path.rstrip("/") + core_path("pods", namespace=namespace, name=pod) + "/portforward"
    url = urlunsplit((scheme, server.netloc, path, f"ports={port}", ""))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(ssl=_tls(credentials) if scheme == "wss" else False)
    async with aiohttp.ClientSession(connector=connector, headers=bearer, timeout=timeout) as session:
        forwarder = Forwarder(url=url, session=session)
        listener = await asyncio.start_server(forwarder.accept, host="127.0.0.1", port=0)
        forwarder.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield forwarder
        finally:
            listener.close()


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    with suppress(aiohttp.ClientError, OSError):
        while chunk := await reader.read(_CHUNK):
            await socket.send_bytes(bytes((_DATA,)) + chunk)
    await socket.close()


def _tls(credentials: ApiCredentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=credentials.ca_path)
        if credentials.is_unverified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if credentials.certificate_path:
            context.load_cert_chain(credentials.certificate_path, credentials.key_path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput("the kubeconfig's certificates cannot be used") from error
    return context

"""Both ends of a proxied connection, down to the bytes: what a well-behaved library would hide is the point."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Lines = list[tuple[str, str]]
CRLF = b"\r\n"
PATIENCE = 10


@dataclass
class Message:
    """One HTTP/1 message as it came; `lines` in order, names as sent."""

    start: str
    lines: Lines
    body: bytes = b""

    @property
    def status(self) -> int:
        return int(self.start.split()[1])

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.lines if key.lower() == name]


@dataclass
class RecordingUpstream:
    """Answers 200 to everything (101 to an upgrade, then echoes), keeping each request and each stray byte."""

    port: int = 0
    requests: list[Message] = field(default_factory=list)
    connections: int = 0
    refuse_upgrades: bool = False

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await read_message(reader)) is not None:
                self.requests.append(request)
                if request.values("upgrade") and not self.refuse_upgrades:
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
                    )
                    while data := await reader.read(65536):
                        writer.write(b"echo:" + data)
                writer.write(b"HTTP/1.1 200 OK\r\nserver: upstream\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def an_upstream() -> AsyncIterator[RecordingUpstream]:
    upstream = RecordingUpstream()
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0, limit=1 << 20)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, method: str = "GET") -> Message:
        async with asyncio.timeout(PATIENCE):
            message = await (read_message(self.reader) if method != "HEAD" else read_head(self.reader))
        assert message is not None, "the connection was closed without a response"
        return message


@asynccontextmanager
async def a_client(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    message = await read_head(reader)
    if message is None:
        return None
    if "chunked" in message.values("transfer-encoding"):
        message.body = await _read_chunks(reader)
    elif lengths := message.values("content-length"):
        message.body = await reader.readexactly(int(lengths[0]))
    return message


async def read_head(reader: asyncio.StreamReader) -> Message | None:
    try:
        head = await reader.readuntil(CRLF + CRLF)
    except asyncio.IncompleteReadError:
        return None
    start, *lines = head.decode("latin-1").split("\r\n")[:-2]
    return Message(start, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)])


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(CRLF), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


def chunked(data: bytes, size: int = 65536) -> bytes:
    pieces = (data[i : i + size] for i in range(0, len(data), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"

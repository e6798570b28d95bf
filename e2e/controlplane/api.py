"""Requests to an API server as its administrator, without a process for each, as kubectl is."""

import http.client
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API server and who is asking.

    Attributes:
        url: Address of the API server.
        authority: Certificate of who issued the API server's.
        credential: Certificate and key of the client.
    """

    url: str
    authority: bytes
    credential: tuple[Path, Path]

    def ask(self, method: str, path: str, *, body: str | None = None) -> bytes | None:
        """The body of a success; None if nobody answers, or something else."""
        status, content = self.send(method, path, body=body)
        return content if 0 < status < HTTPStatus.BAD_REQUEST else None

    def send(
        self, method: str, path: str, *, body: str | None = None, seconds: float = _SECONDS
    ) -> tuple[int, bytes]:
        """Status and body of the answer; 0 and why, if there is none."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        context.load_cert_chain(*self.credential)
        address = self.url.removeprefix("https://")
        connection = http.client.HTTPSConnection(address, context=context, timeout=seconds)
        try:
            connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error).encode()
        finally:
            connection.close()

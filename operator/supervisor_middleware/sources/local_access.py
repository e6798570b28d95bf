"""How `smw status` reaches a standalone control plane on its machine. A file edge.

`status-access.json` (0600) holds the address and a token that is made anew at every start: whoever may read the state
directory may see how supervisors stand.
"""

import hmac
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.pki.files import Mode, read_file, replace_file

ACCESS_FILE: Final = "status-access.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAccess:
    """Everything, to the bearer of one token. Structurally distribution's `Access`."""

    token: str = field(repr=False)

    async def viewer(self, token: str, *, namespace: str) -> str:  # noqa: ARG002 - one token, every namespace
        """Its bearer.

        Raises:
            Untrusted: it is another one.
        """
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Untrusted("the token is not the one of this start")
        return "the bearer of the token"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """Where a running control plane answers, and what proves that one may ask."""

    address: str
    token: str = field(repr=False)


def write_endpoint(directory: Path, endpoint: LocalEndpoint) -> None:
    """Let whoever may read `directory` ask.

    Raises:
        Unavailable, InvalidInput: the disk fails, or is not ours to write.
    """
    content = json.dumps({"address": endpoint.address, "token": endpoint.token}, indent=1)
    replace_file(directory / ACCESS_FILE, content.encode(), mode=Mode.PRIVATE)


def remove_endpoint(directory: Path) -> None:
    """Nobody answers any more."""
    with suppress(OSError):
        (directory / ACCESS_FILE).unlink()


def read_endpoint(directory: Path) -> LocalEndpoint | None:
    """What a running control plane wrote; None if none runs.

    Raises:
        InvalidInput: it cannot be read, or is not ours.
    """
    path = directory / ACCESS_FILE
    content = read_file(path)
    if content is None:
        return None
    try:
        match json.loads(content):
            case {"address": str() as address, "token": str() as token} if token:
                return LocalEndpoint(address=address, token=token)
    except ValueError:
        pass
    raise InvalidInput(f"{path}: is not what smw standalone writes")

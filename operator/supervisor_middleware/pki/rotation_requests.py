"""What somebody asks of a rotation of roots, as text. PURE.

It travels as an annotation or a file, so it is read as what anybody may have written.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_FORCE: Final = " force:"
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9:.+-]{1,64}")


class Stage(StrEnum):
    """Where a rotation stands."""

    STEADY = "steady"
    PREPARED = "prepared"
    ACTIVATED = "activated"
    TAINTED = "tainted"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asked for: a rotation, or (`force`) the end of the stage it names. An identifier is heard once.

    The identifier says all of it, so it is how a request is written down.
    """

    identifier: str
    force: Stage | None = None


def parse_request(text: str) -> Request | None:
    """The request with this identifier; None if it is none."""
    identifier, _, force = text.partition(_FORCE)
    if _IDENTIFIER.fullmatch(identifier) is None or (force and force not in set(Stage)):
        return None
    return Request(identifier=text, force=Stage(force) if force else None)


def new_request(identifier: str, *, force: Stage | None = None) -> Request:
    """A request; `identifier` is never used again."""
    return Request(identifier=identifier if force is None else f"{identifier}{_FORCE}{force.value}", force=force)

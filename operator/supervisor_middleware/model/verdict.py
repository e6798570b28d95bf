"""What came of asking a service. PURE: "it said no" and "it could not be asked" never collapse into one."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from supervisor_middleware.model.manifest import Manifest


class Outage(StrEnum):
    """Why a service could not be asked, in the platform's own words."""

    CONNECTION_FAILED = "the connection failed"
    DEADLINE_EXCEEDED = "it did not answer in time"
    TLS_VERIFICATION_FAILED = "its certificate could not be verified"
    CREDENTIALS_REFUSED = "it refused our credentials"
    CLOSED_AFTER_HANDSHAKE = (
        "it closed the connection after the TLS handshake, as one does that refuses our certificate"
    )
    NOT_IMPLEMENTED = "it does not implement the contract"
    ANSWER_OVER_LIMIT = "its answer is over the message limit"
    CALL_FAILED = "the call failed"
    CROWDED = "too many others wait for it"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The service takes this config."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The service refuses this config; `reason` is its own text, capped and cleaned."""

    reason: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The service could not be asked."""

    outage: Outage


Verdict: TypeAlias = Accepted | Rejected | Unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictKey:
    """What a verdict is about: the same four give the same answer."""

    endpoint: str
    manifest_digest: str
    binding: str
    config_digest: str


@dataclass(frozen=True, slots=True)
class Described:
    """`Describe` answered with a well-formed manifest (valid or not is the compiler's business)."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Undescribable:
    """`Describe` answered with bytes that are no manifest; `problem` is the platform's own words."""

    problem: str


Description: TypeAlias = Described | Undescribable | Unreachable

"""What an administrator decides about compiling. PURE values; `settings.py` at the top reads them from outside."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from supervisor_middleware.model.manifest import Binding
from supervisor_middleware.model.registration import Connection

LATENCY_BUDGET: Final = timedelta(seconds=5)
"""How long a chain may take before whoever writes it is warned, unless the platform says otherwise."""


class Unselected(StrEnum):
    """What a sandbox runs that no policy selects: middleware is opt-in unless the platform says otherwise."""

    ALLOW = "Allow"
    DENY = "Deny"


class Loopback(StrEnum):
    """Whether a registration may name a loopback endpoint: fine on one machine, never on a cluster."""

    REFUSED = "Refused"
    ALLOWED = "Allowed"


class TransportPhase(StrEnum):
    """RFC 0009 "Transport security": the research preview may consent to plaintext, the stable design knows none."""

    PREVIEW = "1"
    STABLE = "2"


class Disclosure(StrEnum):
    """What a review is told of objects that are not in its namespace."""

    NAMES = "Names"
    COUNTS = "Counts"
    """For where anybody who reaches the port could have sent it, and even names are confidential."""


class Knowledge(StrEnum):
    """Whether services can be asked. Offline, what only a service knows is a warning instead of a violation."""

    LIVE = "Live"
    OFFLINE = "Offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSettings:
    """Inputs of every compilation, the same for all callers of one installation."""

    builtins: tuple[Binding, ...] = ()
    unselected: Unselected = Unselected.ALLOW
    loopback: Loopback = Loopback.REFUSED
    transport_phase: TransportPhase = TransportPhase.PREVIEW
    knowledge: Knowledge = Knowledge.LIVE
    latency_budget: timedelta = LATENCY_BUDGET

    def permits(self, connection: Connection) -> bool:
        """Whether content may be sent there at all, accepted before or not."""
        return self.transport_phase is TransportPhase.PREVIEW or not connection.is_insecure

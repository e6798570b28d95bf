"""What enrolment and renewal share: signing while we lead, the audit event, and what a refusal tells the peer.

One supervisor gets so many certificates: each is a signature, a line in the log and one in the audit log.

A refusal tells nothing that would help to guess; the reason is in our log, without a token.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.distribution.attendance import Leaf, leaf_of
from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.endings import abort, refusal
from supervisor_middleware.distribution.holders import Holders
from supervisor_middleware.distribution.pacing import Allowances, Pace
from supervisor_middleware.distribution.streams import NOT_LEADING
from supervisor_middleware.distribution.turns import TooMany
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.wire.gen import distribution_pb2 as pb

OF_ONE: Final = Pace(burst=32, rate=0.2)
"""Of one supervisor. A certificate of a minute is renewed twice in it."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """Signs for whoever has proved who it is. `now` is the clock of certificates; `emit` takes audit events.

    `superseded` hears of every supervisor whose earlier certificates count no more, by the ledger's key.
    """

    authority: Callable[[], Authority]
    trust_bundle: Callable[[], bytes]
    leaf_lifetime: timedelta
    now: Callable[[], datetime]
    emit: Callable[[Event], None]
    leads: Callable[[], bool] = lambda: True
    superseded: Callable[[str], None] = lambda _: None
    monotonic: Callable[[], float] = time.monotonic
    holders: Holders = field(init=False)
    _allowances: Allowances = field(init=False, default_factory=lambda: Allowances(OF_ONE))

    def __post_init__(self) -> None:
        object.__setattr__(self, "holders", Holders(now=self.now))

    def issue(
        self, csr_pem: bytes, *, identity: SandboxIdentity, key: str, asked_with: Leaf | None = None
    ) -> pb.EnrollResponse:
        """A certificate for `identity`, which is now the newest of `key`; `asked_with` is the one it succeeds.

        Raises:
            InvalidInput, Untrusted: the signing request is no good.
            Unavailable: we do not lead.
        """
        self.require_leading()
        issued = self.authority().issue_supervisor(
            csr_pem, identity=identity, now=self.now(), lifetime=self.leaf_lifetime
        )
        self.holders.issued(key, leaf_of(issued.certificate_chain_pem), asked_with=asked_with)
        if asked_with is None:
            self.superseded(key)
        subject = f"Sandbox {identity.namespace}/{identity.sandbox}"
        kind = ChangeKind.CREDENTIALS_ISSUED if asked_with is None else ChangeKind.CREDENTIALS_ROTATED
        self.emit(Changed(kind=kind, subject=subject))
        _log.info(
            "issued a certificate" if asked_with is None else "renewed a certificate",
            sandbox=subject,
            expires_at=issued.expires_at.isoformat(),
        )
        return pb.EnrollResponse(
            certificate_chain_pem=issued.certificate_chain_pem, trust_bundle_pem=self.trust_bundle()
        )

    def require_moderate(self, key: str) -> None:
        """Raise `TooMany` if `key`, which has proved itself, had too many certificates."""
        now = self.monotonic()
        allowance = self._allowances.of(key, now=now)
        if not allowance.take(now):
            raise TooMany("this supervisor had too many certificates", pause=allowance.until_next(now))

    def require_leading(self) -> None:
        """Raise `Unavailable` unless we lead: before a question that costs something, and before signing."""
        if not self.leads():
            raise Unavailable(NOT_LEADING.details)


@asynccontextmanager
async def answering(
    context: "grpc.aio.ServicerContext[Any, Any]", *, what: str, untrusted: str, complaints: Complaints
) -> AsyncIterator[None]:
    """Translate what ends `what` (so named in our log) into how the call ends; a bad proof is told `untrusted`."""
    tell, peer = complaints.tell, context.peer()
    try:
        yield
    except TooMany as error:
        await abort(context, refusal(error))
    except InvalidInput as error:
        tell(_log.warning, f"refused {what}", reason=str(error), peer=peer)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Untrusted as error:
        tell(_log.warning, f"refused {what}", reason=str(error), peer=peer)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, untrusted)
    except Unavailable as error:
        tell(_log.warning, f"could not check {what}", reason=str(error), peer=peer)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "it could not be checked; try again")
    except Exception as error:  # noqa: BLE001 - see the comment
        # gRPC would send the exception's text to the peer; it may repeat the token.
        tell(_log.error, f"{what} failed", error=type(error).__name__)
        await context.abort(grpc.StatusCode.INTERNAL, "the operator failed; see its log")

"""`Enrollment.Enroll`: a CSR and a token in, a certificate out. Server TLS only: who enrols has no certificate yet.

The name comes from what the token proves, never from the request. A refusal tells the peer nothing that would help
it to guess; the reason is in our log.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

import grpc
import grpc.aio
import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.distribution.streams import NOT_LEADING
from supervisor_middleware.distribution.turns import TooMany, Turns, host_of
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as pb_grpc

_log = structlog.get_logger(__name__)


class TokenReviewer(Protocol):
    """Says which sandbox a token proves."""

    async def review(self, token: str) -> SandboxIdentity:
        """The sandbox.

        Raises:
            Untrusted: the token proves none.
            Unavailable: it could not be checked now.
        """


class Enrollment(pb_grpc.EnrollmentServicer):
    """The servicer."""

    def __init__(
        self,
        *,
        authority: Callable[[], Authority],
        reviewer: TokenReviewer,
        trust_bundle: Callable[[], bytes],
        leaf_lifetime: timedelta,
        now: Callable[[], datetime],
        emit: Callable[[Event], None],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`now` is the clock of certificates; `emit` takes audit events. Nothing is signed unless `leads`."""
        self._authority = authority
        self._reviewer = reviewer
        self._trust_bundle = trust_bundle
        self._leaf_lifetime = leaf_lifetime
        self._now = now
        self._emit = emit
        self._leads = leads
        self._turns = Turns()

    async def Enroll(  # noqa: N802 - gRPC's spelling
        self,
        request: pb.EnrollRequest,
        context: grpc.aio.ServicerContext[pb.EnrollRequest, pb.EnrollResponse],
    ) -> pb.EnrollResponse:
        """Sign, if the token proves a live sandbox."""
        try:
            # Anybody may ask, and each question is one to the API server.
            async with self._turns.turn(host_of(context.peer())):
                identity = await self._reviewer.review(request.token)
            self._require_leading()
            issued = self._authority().issue_supervisor(
                request.csr_pem, identity=identity, now=self._now(), lifetime=self._leaf_lifetime
            )
        except TooMany:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many enrolments at once; try again")
            raise
        except InvalidInput as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except Untrusted as error:
            _log.warning("refused an enrolment", reason=str(error))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token does not prove a live sandbox")
            raise
        except Unavailable as error:
            _log.warning("could not check an enrolment", reason=str(error))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the token could not be checked; try again")
            raise
        except Exception as error:
            # gRPC would send the exception's text to the peer; it may repeat the token.
            _log.error("an enrolment failed", error=type(error).__name__)
            await context.abort(grpc.StatusCode.INTERNAL, "the operator failed; see its log")
            raise
        subject = f"Sandbox {identity.namespace}/{identity.sandbox}"
        self._emit(Changed(kind=ChangeKind.CREDENTIALS_ISSUED, subject=subject))
        _log.info("issued a certificate", sandbox=subject, expires_at=issued.expires_at.isoformat())
        return pb.EnrollResponse(
            certificate_chain_pem=issued.certificate_chain_pem,
            trust_bundle_pem=self._trust_bundle(),
        )

    def _require_leading(self) -> None:
        if not self._leads():
            raise Unavailable(NOT_LEADING.details)

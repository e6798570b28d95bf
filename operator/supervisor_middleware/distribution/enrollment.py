"""`Enrollment.Enroll`: a CSR and a token in, a certificate out. Server TLS only: who enrols has no certificate yet.

The name comes from what the token proves, never from the request. A refusal tells the peer nothing that would help
it to guess; the reason is in our log.
"""

from collections.abc import Callable
from typing import Protocol

import grpc.aio

from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.guests import supervisor_key
from supervisor_middleware.distribution.issuance import Issuer, answering
from supervisor_middleware.distribution.turns import Turns, caller_of
from supervisor_middleware.pki.keys import csr_public_key, public_key_digest
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as pb_grpc


class TokenReviewer(Protocol):
    """Says which sandbox a token proves."""

    async def review(self, token: str, *, holder: Callable[[], str]) -> SandboxIdentity:
        """The sandbox. `holder` digests the key that the signing request proves, or raises what is wrong with it.

        Raises:
            Untrusted: the token proves none.
            Unavailable: it could not be checked now.
            InvalidInput: the token is good, the signing request is not.
        """


class Enrollment(pb_grpc.EnrollmentServicer):
    """The servicer."""

    def __init__(self, issuer: Issuer, *, reviewer: TokenReviewer) -> None:
        """Nothing is signed that `reviewer` does not vouch for."""
        self._issuer = issuer
        self._reviewer = reviewer
        self._turns, self._complaints = Turns(), Complaints()

    async def Enroll(  # noqa: N802 - gRPC's spelling
        self,
        request: pb.EnrollRequest,
        context: grpc.aio.ServicerContext[pb.EnrollRequest, pb.EnrollResponse],
    ) -> pb.EnrollResponse:
        """Sign, if the token proves a live sandbox."""
        untrusted = "the token does not prove a live sandbox"
        async with answering(context, what="an enrolment", untrusted=untrusted, complaints=self._complaints):
            self._issuer.require_leading()
            # Anybody may ask, and each question is one to the API server.
            async with self._turns.turn(caller_of(context.peer())):
                csr = request.csr_pem
                identity = await self._reviewer.review(
                    request.token, holder=lambda: public_key_digest(csr_public_key(csr))
                )
            key = supervisor_key(identity)
            self._issuer.require_moderate(key)
            return self._issuer.issue(request.csr_pem, identity=identity, key=key)

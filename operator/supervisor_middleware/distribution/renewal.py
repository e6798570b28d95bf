"""`Renewal.Renew`: a certificate buys its successor. Mutual TLS, beside discovery; no token.

Everything comes from the certificate that TLS verified: the name, the Pod's UID, and whether it is that supervisor's
newest. That its sandbox still lives is asked where the truth is, as at an enrolment, never of a cache.
"""

from typing import Final, Protocol

import grpc.aio

from supervisor_middleware.distribution.attendance import Leaf
from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.guests import guest_of
from supervisor_middleware.distribution.issuance import Issuer, answering
from supervisor_middleware.distribution.shares import Owner
from supervisor_middleware.distribution.turns import Turns
from supervisor_middleware.errors import Untrusted
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as pb_grpc

_OF_ONE_SUPERVISOR: Final = 2
"""Renewals under way: the second is of one that gave up waiting for the first."""


class Vouching(Protocol):
    """Says whether a sandbox that once proved itself still lives."""

    async def vouch(self, identity: SandboxIdentity) -> None:
        """Return if it does.

        Raises:
            Untrusted: it does not, or was revoked.
            Unavailable: that could not be checked now.
        """


class Renewal(pb_grpc.RenewalServicer):
    """The servicer."""

    def __init__(self, issuer: Issuer, *, vouching: Vouching, trust_domain: str) -> None:
        """Nothing is signed that `vouching` does not vouch for."""
        self._issuer = issuer
        self._vouching = vouching
        self._trust_domain = trust_domain
        self._turns, self._complaints = Turns(of_one=_OF_ONE_SUPERVISOR), Complaints()

    async def Renew(  # noqa: N802 - gRPC's spelling
        self,
        request: pb.RenewRequest,
        context: grpc.aio.ServicerContext[pb.RenewRequest, pb.EnrollResponse],
    ) -> pb.EnrollResponse:
        """Sign, if the certificate is the newest of a live sandbox."""
        untrusted = "the certificate does not prove a live sandbox"
        async with answering(context, what="a renewal", untrusted=untrusted, complaints=self._complaints):
            self._issuer.require_leading()
            pem = b"".join(context.auth_context().get("x509_pem_cert", ()))
            guest = guest_of(pem, trust_domain=self._trust_domain)
            key, presented = guest.key, guest.leaf
            self._require_newest(key, presented)
            self._issuer.require_moderate(key)
            async with self._turns.turn(Owner(group=guest.identity.namespace, member=key)):
                await self._vouching.vouch(guest.identity)
            # Meanwhile a token may have bought another. Of two renewals with one certificate the later counts.
            self._require_newest(key, presented)
            return self._issuer.issue(request.csr_pem, identity=guest.identity, key=key, asked_with=presented)

    def _require_newest(self, key: str, presented: Leaf) -> None:
        if not self._issuer.holders.shown(key, presented):
            raise Untrusted(f"{key} has a newer certificate than this one: its key may be in two hands")

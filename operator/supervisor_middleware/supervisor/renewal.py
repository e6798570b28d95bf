"""Getting a certificate's successor, by that certificate alone. A gRPC edge: one attempt; `identity` decides when.

As at an enrolment the private key is made here, and the operator proves itself before it is told anything.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import grpc
from grpc import aio

from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.supervisor.operator_channel import (
    IdentityRefused,
    check_addresses,
    issued_credentials,
    open_operator_channel,
    translated,
)
from supervisor_middleware.supervisor.trust import TrustBundle
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen.distribution_pb2_grpc import RenewalStub

RENEW_TIMEOUT: Final = 10.0


class RenewalRefused(IdentityRefused):
    """The operator will not renew this certificate: only enrolling helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewer:
    """Where to renew (the discovery port, host:port), and whom to expect there. `owner` as for an `Enroller`.

    Raises:
        InvalidInput: an address is none.
    """

    addresses: tuple[str, ...]
    trust_domain: str
    trust: TrustBundle
    owner: str

    def __post_init__(self) -> None:
        check_addresses(self.addresses)

    async def renew(self, current: Credentials, *, attempt: int) -> Credentials:
        """A fresh key with a certificate for it; `attempt` counts the tries, and with it the addresses in turn.

        Raises:
            RenewalRefused: `current` is worth nothing (any more), or this operator renews none.
            InvalidInput, Untrusted, Unavailable: as `Enroller.enroll`.
        """
        address = self.addresses[attempt % len(self.addresses)]
        roots = self.trust.read()
        private_key, csr = await asyncio.to_thread(new_key_and_csr)
        channel = open_operator_channel(address, trust_domain=self.trust_domain, roots_pem=roots, credentials=current)
        try:
            response = await RenewalStub(channel).Renew(pb.RenewRequest(csr_pem=csr), timeout=RENEW_TIMEOUT)
        except aio.AioRpcError as error:
            raise _explained(error, address=address) from None
        finally:
            await channel.close(None)
        return issued_credentials(response, private_key=private_key, roots=roots, owner=self.owner)


def _explained(error: aio.AioRpcError, *, address: str) -> Exception:
    problem = translated(error, address=address)
    # An operator of an earlier release has no such call.
    if isinstance(problem, IdentityRefused) or error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return RenewalRefused(f"operator {address} does not renew this certificate: {error.code().name}")
    return problem

"""Getting a certificate from the operator. A gRPC edge: one attempt; `identity` decides when.

The private key is made here and never leaves; it is the same at each attempt until its certificate is kept, so that
an answer that was lost can be asked for again (`pki.pending_key`). The operator proves itself first (its name, our
roots): a server that cannot is never shown the token, since TLS ends before the first byte of a request.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from grpc import aio

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import csr_of, key_to_pem
from supervisor_middleware.pki.pending_key import PendingKey
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.supervisor.operator_channel import (
    IdentityRefused,
    check_addresses,
    issued_credentials,
    open_operator_channel,
    translated,
)
from supervisor_middleware.supervisor.trust import TrustBundle
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen.distribution_pb2_grpc import EnrollmentStub

ENROLL_TIMEOUT: Final = 10.0
MAX_TOKEN_BYTES: Final = 16_384


class TokenRefused(IdentityRefused):
    """The operator answered UNAUTHENTICATED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enroller:
    """Where to enrol (the enrolment port, host:port), whom to expect there, and what to prove ourselves with.

    `owner` is the SPIFFE ID that this supervisor is meant to have: a certificate for anybody else is refused.
    `token_file` is read at each attempt, since kubelet replaces pod-bound tokens; None: cannot enrol.

    Raises:
        InvalidInput: an address is none.
    """

    addresses: tuple[str, ...]
    trust_domain: str
    trust: TrustBundle
    owner: str
    token_file: Path | None
    pending: PendingKey = field(default_factory=PendingKey)

    def __post_init__(self) -> None:
        check_addresses(self.addresses)

    @property
    def can_enroll(self) -> bool:
        """Whether there is a token to try with."""
        try:
            return self.token_file is not None and self.token_file.is_file()
        except OSError:  # its folder is not ours to enter: whoever tries is told so
            return True

    async def enroll(self, *, attempt: int) -> Credentials:
        """The pending key with a certificate; `attempt` counts the tries, and with it the addresses in turn.

        Raises:
            InvalidInput: a file is missing or no good; names it.
            TokenRefused: the token proves nothing (any more); says whose move it is.
            Untrusted: the answer is not what it must be.
            Unavailable: no answer; what TLS refuses is among it, for that is all gRPC tells.
        """
        address = self.addresses[attempt % len(self.addresses)]
        roots = self.trust.read()
        token = self._token()
        private_key, csr = await asyncio.to_thread(self._asked_with)
        channel = open_operator_channel(address, trust_domain=self.trust_domain, roots_pem=roots, credentials=None)
        try:
            call = EnrollmentStub(channel).Enroll(_request(csr, token), timeout=ENROLL_TIMEOUT)
            response = await call
        except aio.AioRpcError as error:
            raise self._explained(error, address=address) from None  # its debug string may quote the request
        finally:
            await channel.close(None)
        return issued_credentials(response, private_key=private_key, roots=roots, owner=self.owner)

    def settled(self, credentials: Credentials) -> None:
        """They are kept: what they were asked with is pending no more."""
        self.pending.drop(credentials.private_key_pem)

    def _place(self) -> str:
        # The owner's SPIFFE ID ends with ns/NAMESPACE/sandbox/NAME.
        namespace, _, name = self.owner.split("/")[-3:]
        return f"{namespace}/{name}"

    def _asked_with(self) -> tuple[SecretBytes, bytes]:
        key = self.pending.take()
        return key_to_pem(key), csr_of(key)

    def _token(self) -> SecretBytes:
        if self.token_file is None:
            raise InvalidInput("no token file is configured: without one this supervisor cannot enrol")
        try:
            with self.token_file.open("rb") as file:
                content = file.read(MAX_TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise InvalidInput(f"{self.token_file}: {error.strerror}: a token is needed to enrol") from error
        if not content or len(content) > MAX_TOKEN_BYTES or not content.isascii():
            raise InvalidInput(f"{self.token_file}: holds no token")
        return SecretBytes(content)

    def _explained(self, error: aio.AioRpcError, *, address: str) -> Exception:
        problem = translated(error, address=address)
        if not isinstance(problem, IdentityRefused):
            return problem
        return TokenRefused(
            f"operator {address} refused the token in {self.token_file}. In a cluster, look whether this Pod is live "
            f"and carries the sandbox label. Standalone it needs a new one: run `smw token create {self._place()} "
            "--state DIR` where the control plane keeps its state, and put what it prints into that file; it is read "
            "at each attempt, no restart is needed"
        )


def _request(csr: bytes, token: SecretBytes) -> pb.EnrollRequest:
    # Never a name of ours while something may be raised: its repr shows the token.
    return pb.EnrollRequest(csr_pem=csr, token=token.reveal().decode())

"""An operator on loopback: real TLS for enrolment, real mutual TLS for discovery, and no mind of its own.

    async with FakeOperator.serving(authority) as operator:
        operator.offer(generation, epoch=1, sequence=1)
        await operator.reported("active")

Each new stream gets the newest offer, whatever its hello says, unless it is what the supervisor runs already.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio

from supervisor_middleware.model.generation import Generation, seal
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as rpc

WAIT = 5.0


class FakeOperator(rpc.GenerationDiscoveryServicer, rpc.EnrollmentServicer, rpc.RenewalServicer):
    def __init__(self, authority: Authority, identity: SandboxIdentity) -> None:
        self.authority = authority
        self.identity = identity
        self.valid_tokens: set[str] = {"good"}
        self.tokens: list[str] = []
        self.renewals: list[SandboxIdentity] = []
        self.renewal_refusal: grpc.StatusCode | None = None
        self.hellos: list[pb.Hello] = []
        self.reports: list[pb.SupervisorReport] = []
        self.addresses: tuple[str, ...] = ()
        self.enrollment_addresses: tuple[str, ...] = ()
        self.newest: pb.GenerationOffer | None = None
        self.offered = asyncio.Condition()
        self.refusal: grpc.StatusCode | None = None
        self.pushback: int | None = None
        self.is_ending = False
        self._heard = asyncio.Condition()

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, authority: Authority, identity: SandboxIdentity, *, credentials: Credentials | None = None
    ) -> AsyncIterator["FakeOperator"]:
        operator = cls(authority, identity)
        own = credentials or authority.issue_operator(namespace="system", now=datetime.now(UTC))
        pair = (own.private_key_pem.reveal(), own.certificate_chain_pem)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        rpc.add_GenerationDiscoveryServicer_to_server(operator, server)
        rpc.add_RenewalServicer_to_server(operator, server)
        mutual = grpc.ssl_server_credentials(
            [pair], root_certificates=authority.certificate_pem, require_client_auth=True
        )
        operator.addresses = (f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', mutual)}",)
        enrollment = grpc.aio.server()
        rpc.add_EnrollmentServicer_to_server(operator, enrollment)
        port = enrollment.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        operator.enrollment_addresses = (f"127.0.0.1:{port}",)
        await asyncio.gather(server.start(), enrollment.start())
        try:
            yield operator
        finally:
            await asyncio.gather(server.stop(None), enrollment.stop(None))

    async def offer(self, generation: Generation, *, epoch: int = 1, sequence: int = 1) -> str:
        sealed = seal(generation)
        await self.send(
            pb.GenerationOffer(epoch=epoch, sequence=sequence, digest=sealed.digest, payload=sealed.payload)
        )
        return sealed.digest

    async def send(self, offer: pb.GenerationOffer) -> None:
        async with self.offered:
            self.newest = offer
            self.offered.notify_all()

    async def end_streams(self) -> None:
        """As an operator does when they are old: all is well."""
        async with self.offered:
            self.is_ending = True
            self.offered.notify_all()

    async def heard(self, kind: str, digest: str | None = None) -> Any:
        """The first report of this kind (about this digest) that is not consumed yet."""

        def found() -> pb.SupervisorReport | None:
            return next(
                (
                    r
                    for r in self.reports
                    if r.WhichOneof("report") == kind and digest in {None, getattr(getattr(r, kind), "digest", None)}
                ),
                None,
            )

        async with asyncio.timeout(WAIT), self._heard:
            await self._heard.wait_for(lambda: found() is not None)
        report = found()
        assert report is not None
        self.reports.remove(report)
        return getattr(report, kind)

    async def Watch(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.GenerationOffer]:  # noqa: N802
        if self.refusal is not None:
            metadata = () if self.pushback is None else (("grpc-retry-pushback-ms", str(self.pushback)),)
            await context.abort(self.refusal, "no", trailing_metadata=metadata)
        hello = (await anext(request_iterator)).hello
        self.hellos.append(hello)
        reading = asyncio.create_task(self._read(request_iterator))
        sent: pb.GenerationOffer | None = None
        try:
            while True:
                async with self.offered:
                    while self.newest is sent and not self.is_ending:
                        await self.offered.wait()
                    if self.is_ending:
                        return
                    sent = self.newest
                if sent is not None and (not sent.digest or sent.digest != hello.active_digest):
                    yield sent
                hello = pb.Hello()
        finally:
            reading.cancel()

    async def Enroll(self, request: pb.EnrollRequest, context: Any) -> pb.EnrollResponse:  # noqa: N802
        self.tokens.append(request.token)
        if request.token not in self.valid_tokens:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token does not prove a live sandbox")
        return self._issue(request.csr_pem)

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.EnrollResponse:  # noqa: N802
        certificate = b"".join(context.auth_context()["x509_pem_cert"])
        self.renewals.append(sandbox_identity(certificate, trust_domain=self.authority.trust_domain))
        if self.renewal_refusal is not None:
            await context.abort(self.renewal_refusal, "no")
        return self._issue(request.csr_pem)

    def _issue(self, csr_pem: bytes) -> pb.EnrollResponse:
        issued = self.authority.issue_supervisor(csr_pem, identity=self.identity, now=datetime.now(UTC))
        return pb.EnrollResponse(
            certificate_chain_pem=issued.certificate_chain_pem,
            trust_bundle_pem=self.authority.certificate_pem,
        )

    async def _read(self, reports: Any) -> None:
        async for report in reports:
            async with self._heard:
                self.reports.append(report)
                self._heard.notify_all()

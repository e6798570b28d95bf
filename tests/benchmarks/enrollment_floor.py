"""The floor of enrolment: a bare grpc.aio server over TLS that answers at once, always the same.

Its argument is a folder of credentials. It prints its port and serves until it is ended.
"""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from e2e.harness import OPERATOR_NAMESPACE, TRUST_DOMAIN
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as rpc


def a_floor_authority() -> Credentials:
    """What such a server proves itself with: an operator's certificate, of a root of its own."""
    now = datetime.now(UTC)
    return Authority.create(trust_domain=TRUST_DOMAIN, now=now).issue_operator(namespace=OPERATOR_NAMESPACE, now=now)


class _Floor(rpc.EnrollmentServicer):
    def __init__(self, own: Credentials) -> None:
        self._answer = pb.EnrollResponse(
            certificate_chain_pem=own.certificate_chain_pem, trust_bundle_pem=own.trust_bundle_pem
        )

    async def Enroll(self, request: pb.EnrollRequest, context: Any) -> pb.EnrollResponse:  # noqa: N802 - gRPC's
        return self._answer


async def _main(folder: Path) -> None:
    own = read_credentials(folder)
    if own is None:
        raise SystemExit(2)
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    rpc.add_EnrollmentServicer_to_server(_Floor(own), server)
    pair = (own.private_key_pem.reveal(), own.certificate_chain_pem)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))

"""Generations for an `EchoService`, and the authority under which its tests live. Real time: TLS has its own clock."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.manifest import Binding, Dialect
from supervisor_middleware.model.registration import Connection
from tests.fakes.echo_service import BINDING, echo_binding
from tests.pki.builders import an_authority
from tests.supervisor.builders import stage

AUTHORITY: Final = an_authority(now=datetime.now(UTC) - timedelta(days=1))
STRANGER: Final = an_authority(now=datetime.now(UTC) - timedelta(days=1))
SERVICE: Final = AUTHORITY.issue_server(ip_addresses=[ip_address("127.0.0.1")], now=datetime.now(UTC))
FAR: Final = timedelta(seconds=2)
MARK: Final = "x-openshell-middleware-mark-"


def a_service(
    port: int,
    name: str = "echo",
    *,
    needs: tuple[Binding, ...] = (echo_binding(),),
    timeout: timedelta = FAR,
    deadline: timedelta | None = None,
) -> Service:
    connection = Connection(
        endpoint=f"https://127.0.0.1:{port}", timeout=timeout, ca_bundle_pem=AUTHORITY.certificate_pem.decode()
    )
    return Service(
        name=name, connection=connection, dialect=Dialect.RFC0009, needs=needs, activation_deadline=deadline
    )


def echo_stage(key: str, mark: str, *, service: str = "echo", on_error: OnError = OnError.FAIL_CLOSED) -> Stage:
    return stage(key, binding=BINDING, service=service, config={"generation": mark}, on_error=on_error, timeout=FAR)


def marking(mark: str, *services: Service) -> Generation:
    """One stage on each service, which writes `mark` into a header named like the service."""
    stages = tuple(
        replace(
            echo_stage(service.name, mark, service=service.name),
            config={"generation": mark, "header": f"{MARK}{service.name}"},
        )
        for service in services
    )
    return Generation(stages=stages, services=services)


def a_generation(mark: str, *services: Service) -> Generation:
    """Two stages on each service, each told `mark`."""
    stages = tuple(
        echo_stage(f"{service.name}-{n}", mark, service=service.name) for service in services for n in (1, 2)
    )
    return Generation(stages=stages, services=services)

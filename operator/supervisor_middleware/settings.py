"""What an administrator sets: environment (`SMW_...`) and flags, read once into frozen values.

Past this module nobody reads the environment.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.settings import Loopback, Unselected
from supervisor_middleware.pki.spiffe import SpiffeId

TRUST_DOMAIN: Final = "openshell.internal"
AUDIENCE: Final = "supervisor-middleware"
LEAF_LIFETIME: Final = timedelta(hours=24)


def _trust_domain(text: str) -> str:
    try:
        return SpiffeId(trust_domain=text).trust_domain
    except InvalidInput as error:
        raise ValueError(str(error)) from error


TrustDomain = Annotated[str, AfterValidator(_trust_domain)]
LeafLifetime = Annotated[timedelta, Field(ge=timedelta(minutes=1), le=timedelta(days=7))]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SMW_", frozen=True, extra="ignore")

    log_level: str = "INFO"


class ControlPlaneSettings(_Settings):
    """Shared by `smw operator` and `smw standalone`."""

    trust_domain: TrustDomain = TRUST_DOMAIN
    host: str = "0.0.0.0"  # noqa: S104 - supervisors connect from other machines; TLS guards the ports
    enrollment_port: Port = 8443
    discovery_port: Port = 8444
    health_port: Port = 8080
    leaf_lifetime: LeafLifetime = LEAF_LIFETIME
    unselected: Unselected = Unselected.ALLOW
    loopback: Loopback = Loopback.REFUSED
    audit_file: Path | None = None


class OperatorSettings(ControlPlaneSettings):
    """`smw operator`."""

    namespace: str = "supervisor-middleware"
    kubeconfig: Path | None = None
    audience: str = AUDIENCE
    webhook_port: Port = 9443
    webhook_names: tuple[str, ...] = ()
    webhook_configuration: str = "supervisor-middleware"


class StandaloneSettings(ControlPlaneSettings):
    """`smw standalone`."""

    host: str = "127.0.0.1"
    loopback: Loopback = Loopback.ALLOWED
    state: Path = Path(".state/standalone")


class SupervisorSettings(_Settings):
    """`smw supervisor`. `operators` are hosts: the operator's replicas, tried in turn."""

    trust_domain: TrustDomain = TRUST_DOMAIN
    namespace: str = "default"
    sandbox: str
    operators: tuple[str, ...] = ("127.0.0.1",)
    enrollment_port: Port = 8443
    discovery_port: Port = 8444
    trust_bundle: Path = Path("/etc/supervisor-middleware/trust/ca.crt")
    token_file: Path | None = None
    state: Path = Path(".state/supervisor")
    listen: str = "127.0.0.1:15001"
    upstream: str | None = None
    health_port: Port = 8081
    audit_file: Path | None = None

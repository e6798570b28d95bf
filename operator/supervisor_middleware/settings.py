"""What an administrator sets: environment (`SMW_...`) and flags, read once into frozen values.

Past this module nobody reads the environment. Messages name what is allowed, never what was given: it may be a secret
in the wrong place.
"""

import json
from datetime import timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.durations import read_duration
from supervisor_middleware.model.limits import CHAIN_TIMEOUT
from supervisor_middleware.model.settings import LATENCY_BUDGET, Disclosure, Loopback, TransportPhase, Unselected
from supervisor_middleware.pki.authority import LEAF_LIFETIME, ROOT_LIFETIME
from supervisor_middleware.pki.rotation import OVERLAP
from supervisor_middleware.pki.spiffe import SpiffeId, is_label, is_subdomain

TRUST_DOMAIN: Final = "openshell.internal"
AUDIENCE: Final = "supervisor-middleware"
CA_OVERLAP: Final = timedelta(seconds=60)


def _trust_domain(text: str) -> str:
    try:
        return SpiffeId(trust_domain=text).trust_domain
    except InvalidInput as error:
        raise ValueError(str(error)) from error


def _label(text: str) -> str:
    if not is_label(text):
        raise ValueError("must be a lower-case DNS label of at most 63 characters")
    return text


def _subdomain(text: str) -> str:
    if not is_subdomain(text):
        raise ValueError("must be a lower-case DNS name")
    return text


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port[:6]) > 65535:
        raise ValueError("must be HOST:PORT")
    return text


def _duration(value: object) -> object:
    """Our grammar (`24h`) first; what else pydantic reads (`PT24H`) is left to it."""
    read = read_duration(value) if isinstance(value, str) else None
    return value if read is None else read


def _list(value: object) -> object:
    """Between commas, or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("must be a list: a, b or a JSON array") from None
    return tuple(part for part in (p.strip() for p in value.split(",")) if part)


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _reachable(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError("must be an address at which others reach this Pod")
    return address


PodAddress = Annotated[IPv4Address | IPv6Address, AfterValidator(_reachable)]
TrustDomain = Annotated[str, AfterValidator(_trust_domain)]
LeafLifetime = Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(minutes=1), le=timedelta(days=7))]
CaOverlap = Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(seconds=1), le=timedelta(hours=1))]
RootLifetime = Annotated[
    timedelta, BeforeValidator(_duration), Field(ge=timedelta(days=30), le=timedelta(days=36500))
]
RootOverlap = Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(seconds=1), le=timedelta(hours=24))]
LatencyBudget = Annotated[timedelta, BeforeValidator(_duration), Field(gt=timedelta(0), le=CHAIN_TIMEOUT)]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, AfterValidator(_address)]
Namespace = Annotated[str, AfterValidator(_label)]
Name = Annotated[str, AfterValidator(_subdomain)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_list)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]


class RootRotation(StrEnum):
    """Whether a root is rotated by itself when a third of its life is left."""

    SCHEDULED = "Scheduled"
    ON_REQUEST = "OnRequest"


class _Settings(BaseSettings):
    # A template that renders an absent value leaves an empty one: that is no setting.
    model_config = SettingsConfigDict(env_prefix="SMW_", env_ignore_empty=True, frozen=True, extra="ignore")

    log_level: LogLevel = "INFO"


class ControlPlaneSettings(_Settings):
    """Shared by `smw operator` and `smw standalone`."""

    trust_domain: TrustDomain = TRUST_DOMAIN
    host: str = "0.0.0.0"  # noqa: S104 - supervisors connect from other machines; TLS guards the ports
    enrollment_port: Port = 8443
    discovery_port: Port = 8444
    health_port: Port = 8080
    leaf_lifetime: LeafLifetime = LEAF_LIFETIME
    root_lifetime: RootLifetime = ROOT_LIFETIME
    root_rotation: RootRotation = RootRotation.SCHEDULED
    root_overlap: RootOverlap = OVERLAP
    unselected: Unselected = Unselected.ALLOW
    loopback: Loopback = Loopback.REFUSED
    transport_phase: TransportPhase = TransportPhase.PREVIEW
    latency_budget: LatencyBudget = LATENCY_BUDGET
    audit_file: Path | None = None


class OperatorSettings(ControlPlaneSettings):
    """`smw operator`."""

    namespace: Namespace = "supervisor-middleware"
    kubeconfig: Path | None = None
    audience: str = AUDIENCE
    webhook_port: Port = 9443
    webhook_names: Names = ()
    webhook_configuration: str = "supervisor-middleware"
    webhook_ca_overlap: CaOverlap = CA_OVERLAP
    webhook_certificate_dir: Path | None = None
    webhook_client_ca: Path | None = None
    webhook_client_names: Names = ()
    webhook_disclosure: Disclosure = Disclosure.NAMES
    webhook_self_test: bool = True
    pod_ip: PodAddress | None = None
    leader_service: Namespace = "supervisor-middleware"


class StandaloneSettings(ControlPlaneSettings):
    """`smw standalone`."""

    host: str = "127.0.0.1"
    loopback: Loopback = Loopback.ALLOWED
    state: Path = Path(".state/standalone")
    ca_dir: Path | None = None


class SandboxSettings(_Settings):
    """Shared by `smw supervisor` and `smw enroll`. `operators` are hosts: the operator's replicas, tried in turn."""

    trust_domain: TrustDomain = TRUST_DOMAIN
    namespace: Namespace = "default"
    sandbox: Name
    operators: Annotated[Names, Field(min_length=1)] = ("127.0.0.1",)
    enrollment_port: Port = 8443
    discovery_port: Port = 8444
    trust_bundle: Path = Path("/etc/supervisor-middleware/trust/ca.crt")
    token_file: Path | None = None
    audit_file: Path | None = None


class SupervisorSettings(SandboxSettings):
    """`smw supervisor`."""

    state: Path = Path(".state/supervisor")
    listen: Address = "127.0.0.1:15001"
    upstream: Address | None = None
    health_host: str = "127.0.0.1"
    health_port: Port = 8081


class EnrollSettings(SandboxSettings):
    """`smw enroll`."""

    out: Path

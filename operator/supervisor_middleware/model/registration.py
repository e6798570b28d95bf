"""A registration as generations use it: the effective spec and the manifest accepted under it. PURE.

Registrations have last-known-good too: this value is kept in the object's `status.accepted` and replaced only
after `Describe` succeeded under the new spec, so an edit that goes wrong takes nothing from anybody.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from supervisor_middleware.model.canonical import JsonObject, ParsedJson
from supervisor_middleware.model.durations import format_duration, parse_timeout
from supervisor_middleware.model.manifest import Binding, Manifest, effective_timeout


class ClientAuthentication(StrEnum):
    """How we prove ourselves to a service."""

    MUTUAL_TLS = "MutualTLS"
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a service: everything a client needs, and nothing about what may be sent there."""

    endpoint: str
    timeout: timedelta
    ca_bundle_pem: str = ""
    server_name: str = ""
    client_authentication: ClientAuthentication = ClientAuthentication.MUTUAL_TLS

    @property
    def is_insecure(self) -> bool:
        """Whether content travels in the clear (only with `allowInsecure` and `http://`)."""
        return self.endpoint.startswith("http://")

    def to_json(self) -> JsonObject:
        """The form shared by `status.accepted` and generations."""
        return {
            "grpcEndpoint": self.endpoint,
            "timeout": format_duration(self.timeout),
            "caBundle": self.ca_bundle_pem,
            "serverName": self.server_name,
            "clientAuthentication": self.client_authentication.value,
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            endpoint=str(value["grpcEndpoint"]),
            timeout=parse_timeout(str(value["timeout"])),
            ca_bundle_pem=str(value["caBundle"]),
            server_name=str(value["serverName"]),
            client_authentication=ClientAuthentication(str(value["clientAuthentication"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """An accepted registration. `name` is diagnostic (and the ID of a released service's one binding).

    `manifest` is what the registration takes of the service's; `claims` are the binding IDs that are its own, offered
    at the moment or not: those it declares, or those of the first manifest that was accepted.
    """

    name: str
    uid: str
    created_at: datetime
    connection: Connection
    max_body_bytes: int
    manifest: Manifest
    declared_bindings: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()

    @property
    def owned(self) -> frozenset[str]:
        """Every binding ID no other registration can have."""
        return frozenset((*self.claims, *(b.id for b in self.manifest.bindings)))

    def binding(self, identifier: str) -> Binding | None:
        """The binding with this ID, if the service offers it."""
        return next((b for b in self.manifest.bindings if b.id == identifier), None)

    def timeout_of(self, binding: Binding) -> timedelta:
        """The effective timeout of calls to `binding`."""
        return effective_timeout(registration=self.connection.timeout, binding=binding, dialect=self.manifest.dialect)

    def to_json(self) -> JsonObject:
        """The form kept in `status.accepted`."""
        return {
            "name": self.name,
            "uid": self.uid,
            "createdAt": self.created_at.isoformat(),
            "connection": self.connection.to_json(),
            "maxBodyBytes": self.max_body_bytes,
            "bindings": list(self.declared_bindings),
            "claims": list(self.claims),
            "manifest": self.manifest.to_json(),
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        created_at = datetime.fromisoformat(str(value["createdAt"]))
        if created_at.tzinfo is None:
            raise ValueError("createdAt has no time zone")  # it could not be compared with another
        manifest = Manifest.from_json(value["manifest"])
        declared = tuple(str(b) for b in value.get("bindings", ()))
        # Written before claims were kept: what was accepted then is what was claimed.
        claims = value.get("claims", declared or tuple(dict.fromkeys(b.id for b in manifest.bindings)))
        return cls(
            name=str(value["name"]),
            uid=str(value["uid"]),
            created_at=created_at,
            connection=Connection.from_json(value["connection"]),
            max_body_bytes=int(value["maxBodyBytes"]),
            manifest=manifest,
            declared_bindings=declared,
            claims=tuple(str(c) for c in claims),
        )

"""Builders that name only what a test is about; everything else is right, small and always the same.

`a_policy(order=10)` is a policy as somebody typed it, `a_revision()` one that was accepted, `an_accepted_registration()`
a registration that generations may use. Where a whole spec matters, pass `spec=`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.registration import ClientAuthentication, Connection, Registration
from supervisor_middleware.model.revision import BASELINE_KIND, Entry, Position, Revision, Skip, Unresolved
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.selectors import Operator, Requirement, Selector
from supervisor_middleware.model.settings import CompilerSettings, Knowledge, Loopback, TransportPhase, Unselected
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.violation import Subject

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NAMESPACE: Final = "team-a"
NAMESPACES: Final = {name: {NAMESPACE_LABEL: name} for name in (NAMESPACE, "team-b", "team-c")}
REDACTOR: Final = "acme/redactor"
REGEX: Final = "openshell/regex"

Json = dict[str, Any]


def a_builtin(identifier: str = REGEX, *, max_body_bytes: int = 256 * 1024) -> Binding:
    return a_binding(identifier, max_body_bytes=max_body_bytes)


def some_settings(
    *,
    builtins: Sequence[Binding] | None = None,
    unselected: Unselected = Unselected.ALLOW,
    loopback: Loopback = Loopback.REFUSED,
    transport_phase: TransportPhase = TransportPhase.PREVIEW,
    knowledge: Knowledge = Knowledge.LIVE,
) -> CompilerSettings:
    return CompilerSettings(
        builtins=tuple(builtins if builtins is not None else (a_builtin(),)),
        unselected=unselected,
        loopback=loopback,
        transport_phase=transport_phase,
        knowledge=knowledge,
    )


# ------------------------------------------------------------------------------------------------------- as typed


def an_entry_spec(middleware: str = REDACTOR, *, include: Sequence[str] = ("*.example.com",), **fields: Any) -> Json:
    """One value of `networkMiddlewares` as somebody types it; `fields` are camelCase."""
    return {"middleware": middleware, "endpoints": {"include": list(include)}, **fields}


def a_policy(
    name: str = "redaction",
    *,
    namespace: str = NAMESPACE,
    uid: str | None = None,
    generation: int = 1,
    created_at: datetime = NOW,
    selector: Json | None = None,
    key: str = "redact",
    entries: Mapping[str, Any] | None = None,
    spec: Any = None,
    **entry: Any,
) -> Stored:
    """A SandboxPolicy with one entry made of `entry` (as in `an_entry_spec`), or with `entries`, or with `spec`."""
    if spec is None:
        spec = {
            "sandboxSelector": selector or {},
            "networkMiddlewares": dict(entries) if entries is not None else {key: an_entry_spec(**entry)},
        }
    return Stored(
        subject=Subject(kind="SandboxPolicy", namespace=namespace, name=name),
        uid=uid or f"uid-of-{namespace}-{name}",
        generation=generation,
        created_at=created_at,
        spec=spec,
    )


def a_baseline(
    name: str = "platform",
    *,
    generation: int = 1,
    created_at: datetime = NOW,
    selector: Json | None = None,
    key: str = "audit",
    **entry: Any,
) -> Stored:
    """A ClusterSandboxPolicy with one entry made of `entry`; `selector` is of namespaces."""
    return Stored(
        subject=Subject(kind=BASELINE_KIND, name=name),
        uid=f"uid-of-{name}",
        generation=generation,
        created_at=created_at,
        spec={"namespaceSelector": selector or {}, "networkMiddlewares": {key: an_entry_spec(**entry)}},
    )


def a_registration(
    name: str = "acme",
    *,
    uid: str | None = None,
    generation: int = 1,
    created_at: datetime = NOW,
    spec: Any = None,
    **fields: Any,
) -> Stored:
    """A SupervisorMiddleware; `fields` are camelCase fields of its spec, None removes one."""
    if spec is None:
        whole = {"grpcEndpoint": "https://redactor.acme.svc:8443", "maxBodyBytes": 65536, **fields}
        spec = {k: v for k, v in whole.items() if v is not None}
    return Stored(
        subject=Subject(kind="SupervisorMiddleware", name=name),
        uid=uid or f"uid-of-{name}",
        generation=generation,
        created_at=created_at,
        spec=spec,
    )


# ---------------------------------------------------------------------------------------------------- what services say


def a_binding(
    identifier: str = REDACTOR,
    *,
    operation: Operation = Operation.HTTP_REQUEST,
    phase: Phase = Phase.PRE_CREDENTIALS,
    max_body_bytes: int = MAX_BODY_BYTES,
    timeout: str = "",
) -> Binding:
    return Binding(id=identifier, operation=operation, phase=phase, max_body_bytes=max_body_bytes, timeout=timeout)


def a_manifest(*bindings: Binding, dialect: Dialect = Dialect.RFC0009, version: str = "1.0.0") -> Manifest:
    return Manifest(
        name="acme-middleware", service_version=version, dialect=dialect, bindings=bindings or (a_binding(),)
    )


# --------------------------------------------------------------------------------------------------------- accepted


def a_connection(
    endpoint: str = "https://redactor.acme.svc:8443",
    *,
    timeout: timedelta = timedelta(milliseconds=500),
    ca_bundle_pem: str = "",
    server_name: str = "",
    client_authentication: ClientAuthentication = ClientAuthentication.MUTUAL_TLS,
) -> Connection:
    return Connection(
        endpoint=endpoint,
        timeout=timeout,
        ca_bundle_pem=ca_bundle_pem,
        server_name=server_name,
        client_authentication=client_authentication,
    )


def an_accepted_registration(
    name: str = "acme",
    *,
    uid: str | None = None,
    created_at: datetime = NOW,
    connection: Connection | None = None,
    max_body_bytes: int = 65536,
    manifest: Manifest | None = None,
    declared_bindings: Sequence[str] = (),
    claims: Sequence[str] | None = None,
) -> Registration:
    offered = manifest or a_manifest()
    if claims is None:
        claims = declared_bindings or [b.id for b in offered.bindings]
    return Registration(
        name=name,
        uid=uid or f"uid-of-{name}",
        created_at=created_at,
        connection=connection or a_connection(),
        max_body_bytes=max_body_bytes,
        manifest=offered,
        declared_bindings=tuple(declared_bindings),
        claims=tuple(claims),
    )


def an_entry(
    key: str = "redact",
    *,
    binding: str = REDACTOR,
    order: int = 0,
    config: Json | None = None,
    on_error: OnError = OnError.FAIL_CLOSED,
    include: Sequence[str] = ("*.example.com",),
    exclude: Sequence[str] = (),
    verdict: str = "",
    unresolved: Unresolved | None = None,
) -> Entry:
    return Entry(
        key=key,
        label=key,
        binding=binding,
        order=order,
        config=config or {},
        on_error=on_error,
        include=tuple(include),
        exclude=tuple(exclude),
        verdict=verdict,
        unresolved=unresolved,
    )


def a_revision(
    *entries: Entry,
    name: str = "redaction",
    namespace: str = NAMESPACE,
    uid: str | None = None,
    generation: int = 1,
    created_at: datetime = NOW,
    labels: Mapping[str, str] | None = None,
    activation_deadline: timedelta | None = None,
) -> Revision:
    """An accepted policy; `labels` are what its selector asks for (None: every sandbox of the namespace)."""
    requirements = (
        Requirement(key=key, operator=Operator.IN, values=(value,)) for key, value in sorted((labels or {}).items())
    )
    return Revision(
        policy=Subject(kind="SandboxPolicy", namespace=namespace, name=name),
        uid=uid or f"uid-of-{namespace}-{name}",
        generation=generation,
        created_at=created_at,
        selector=Selector(requirements=tuple(requirements)),
        entries=entries or (an_entry(),),
        activation_deadline=activation_deadline,
    )


def a_baseline_revision(
    *entries: Entry,
    name: str = "platform",
    uid: str | None = None,
    created_at: datetime = NOW,
    labels: Mapping[str, str] | None = None,
    position: Position = Position.FIRST,
    skips: Sequence[str] = (),
) -> Revision:
    """An accepted ClusterSandboxPolicy; `labels` are of namespaces, `skips` hosts with `tls: skip`."""
    return replace(
        a_revision(*entries, uid=uid or f"uid-of-{name}", created_at=created_at, labels=labels),
        policy=Subject(kind=BASELINE_KIND, name=name),
        position=position,
        skips=tuple(Skip(path=f"spec.networkPolicies.p.endpoints[{i}]", host=h) for i, h in enumerate(skips)),
    )


# -------------------------------------------------------------------------------------------------- what sandboxes run


def a_sandbox(
    name: str = "coder",
    *,
    namespace: str = NAMESPACE,
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Sandbox:
    return Sandbox(namespace=namespace, name=name, uid=uid or f"uid-of-{namespace}-{name}", labels=dict(labels or {}))


def a_stage(
    key: str = "redact",
    *,
    policy: str = f"{NAMESPACE}/redaction",
    binding: str = REDACTOR,
    service: str | None = "acme",
    config: Json | None = None,
    on_error: OnError = OnError.FAIL_CLOSED,
    include: Sequence[str] = ("*.example.com",),
    exclude: Sequence[str] = (),
    max_body_bytes: int = 65536,
    timeout: timedelta = timedelta(milliseconds=500),
    unresolved: Unresolved | None = None,
) -> Stage:
    """A stage that a registered service runs; `service=None` for a built-in. An unresolved one has no service."""
    return Stage(
        key=key,
        label=key,
        policy=policy,
        binding=binding,
        service=service if unresolved is None else None,
        config=config or {},
        on_error=on_error,
        selector=HostSelector(include=parse_patterns(include), exclude=parse_patterns(exclude)),
        max_body_bytes=max_body_bytes if unresolved is None else 0,
        timeout=timeout,
        unresolved=unresolved,
    )


def a_service(
    name: str = "acme",
    *,
    connection: Connection | None = None,
    dialect: Dialect = Dialect.RFC0009,
    needs: Sequence[Binding] | None = None,
    activation_deadline: timedelta | None = None,
) -> Service:
    return Service(
        name=name,
        connection=connection or a_connection(),
        dialect=dialect,
        needs=tuple(needs if needs is not None else (a_binding(max_body_bytes=65536),)),
        activation_deadline=activation_deadline,
    )


def a_generation(*stages: Stage, services: Sequence[Service] | None = None) -> Generation:
    """A chain of `stages` with a service for each name they use, unless `services` are given."""
    chain = stages or (a_stage(),)
    if services is None:
        needed: dict[str, dict[str, Binding]] = {}
        for stage in chain:
            if stage.service is not None:
                need = a_binding(stage.binding, max_body_bytes=stage.max_body_bytes)
                needed.setdefault(stage.service, {})[stage.binding] = need
        services = [a_service(n, needs=[b for _, b in sorted(of.items())]) for n, of in sorted(needed.items())]
    return Generation(stages=chain, services=tuple(services))

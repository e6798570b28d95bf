"""What `smw capabilities` says that no code can tell: the scope of inspection, and what is left out and why.

RFC 0009 "Goals and non-goals", "Decisions and explicit deferrals". A row of `UNSUPPORTED` goes when it is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.model.manifest import Dialect

DIALECTS: Final[Mapping[Dialect, str]] = {
    Dialect.RFC0009: "bindings have IDs of their own; a policy names the binding ID",
    Dialect.RELEASED: "no binding IDs, as OpenShell ships it; a policy names the registration",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A feature or a purpose that is left out."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A kind of traffic, and whether middleware sees it."""

    name: str
    is_inspected: bool
    reason: str


SCOPE: Final = (
    Traffic(
        name="HTTP/1.x requests",
        is_inspected=True,
        reason="after network and L7 admission, whether or not the endpoint declares a protocol",
    ),
    Traffic(name="WebSocket upgrade requests", is_inspected=True, reason="they are HTTP/1.x requests"),
    Traffic(name="WebSocket frames", is_inspected=False, reason="after the upgrade there are no requests"),
    Traffic(name="HTTP/2 and HTTP/3", is_inspected=False, reason="version 1 of the contract is about HTTP/1.x"),
    Traffic(name="responses", is_inspected=False, reason="version 1 of the contract has no response phase"),
    Traffic(
        name="opaque TCP and TLS",
        is_inspected=False,
        reason="no request to parse; HTTPS too, as the reference supervisor terminates no TLS",
    ),
    Traffic(
        name="endpoints with tls: skip",
        is_inspected=False,
        reason="they are never decrypted; a selector that covers one is refused",
    ),
    Traffic(
        name="phases other than PRE_CREDENTIALS",
        is_inspected=False,
        reason="a manifest with another is refused; WebSocket messages of a released service are never sent",
    ),
)

UNSUPPORTED: Final = (
    Row(
        name="token authentication of callers (Token, audience)",
        reason="callers prove themselves by mutual TLS; OpenShell's bearer tokens are work of their own",
    ),
    Row(
        name="shared middleware profiles, provider-profile opt-ins",
        reason="deferred by RFC 0009; configs are local to a policy",
    ),
    Row(name="before and after constraints", reason="deferred until profiles compose; order is a unique number"),
    Row(name="a health RPC", reason="not in version 1; Describe, timeouts, onError and retries give availability"),
    Row(
        name="a command that scaffolds and registers a service",
        reason="not built yet; the SDK and the examples are where to begin",
    ),
    Row(
        name="registrations by namespace users, with grants",
        reason="a registration decides who receives raw content: it is cluster-scoped and administrative",
    ),
    Row(
        name="HttpResponse/completed notifications",
        reason="not in version 1: no status, length, route or token usage after a call",
    ),
    Row(
        name="other phases: pre-policy, post_credentials, response, routing, WebSocket, TCP",
        reason="not in version 1; HTTP_REQUEST/PRE_CREDENTIALS is the one hook, so no openshell/sigv4 either",
    ),
    Row(
        name="streamed bodies, previews, portable feature names",
        reason="not in version 1: one unary call a stage over a bounded body, without semantic context",
    ),
    Row(name="typed metadata and usage markers for routing", reason="metadata is strings; the router is other work"),
    Row(
        name="WASM, managed images, sidecars, own sandboxes",
        reason="deferred by RFC 0009: services run by an operator, and built-ins, are the two forms",
    ),
    Row(
        name="reliable originating_process",
        reason="it is known per connection at best: context, never an authorization input",
    ),
    Row(name="tenant grouping", reason="policies select sandboxes; the contract has no tenant object"),
    Row(
        name="further uses of x-openshell-middleware-* headers",
        reason="reserved beyond version 1; services write that prefix only",
    ),
)
"""RFC 0009's deferrals and open questions, each with its reason."""

NON_GOALS: Final = (
    Row(name="model routing", reason="middleware allows, denies or changes a request; it chooses no upstream"),
    Row(name="a general plugin framework", reason="the subject is requests that leave a sandbox"),
    Row(name="gateway control-plane hooks", reason="gateway interceptors are a contract of their own"),
    Row(name="compute driver behaviour", reason="how sandboxes are made is not touched"),
    Row(
        name="sandboxing or verifying services",
        reason="a registered service is trusted by whoever registers it; TLS protects the connection only",
    ),
    Row(name="correct detection", reason="what a service finds or misses is the service's responsibility"),
    Row(name="every deployment mode", reason="see unsupported"),
)

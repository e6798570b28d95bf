"""What Envoy is told, as a pure function. PURE: values in, a JSON-able bootstrap out.

Owns every choice about Envoy that security rests on: a request that cannot be shown to the supervisor is refused,
nothing about a request is logged, and what the chain saw is what leaves. Never starts anything (`envoy` does) and
never holds a policy: which host is inspected is decided per request, in `ext_proc`.

Used by `envoy.EnvoyProcess`, and by whoever runs Envoy elsewhere (a separate gateway Pod) and wants the same filter.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.limits import CHAIN_TIMEOUT, KIB, MAX_BODY_BYTES, MAX_HEADER_LINES, MIB
from supervisor_middleware.supervisor.permits import PATIENCE

# A body at the cap must be held whole, so that end_of_stream can arrive with it, chunk framing included.
BUFFER_BYTES: Final = MAX_BODY_BYTES + MIB
# What one read may add to that: a read as large as the buffer would overrun it before anyone is asked.
READ_BYTES: Final = 256 * KIB
# What Envoy waits for one answer: the wait for a permit and the chain's deadline (RFC 0009), and some slack.
ANSWER_SECONDS: Final = int(PATIENCE.total_seconds() + CHAIN_TIMEOUT.total_seconds()) + 5
# Model answers are slow and agents keep sockets open: idle ends a stream, a busy one may last.
IDLE_SECONDS: Final = 900
HEADERS_SECONDS: Final = 60
# One sandbox's agents; a runaway one must not exhaust file descriptors. As many as Envoy opens upstream by default.
MAX_CONNECTIONS: Final = 1024
# Above the contract's 128 lines and 64 KiB, so that a request over them is a stage's failure and not Envoy's 431.
MAX_HEADERS_COUNT: Final = 4 * MAX_HEADER_LINES
MAX_HEADERS_KIB: Final = 128

_TYPE: Final = "type.googleapis.com/envoy."
_PROCESSOR: Final = "supervisor"
_UPSTREAM: Final = "upstream"
# An agent's own x-forwarded-proto would change the scheme that stages see, so it goes before anything reads it; Envoy
# then adds one of its own, which no stage is shown and which goes before upstream.
_FORWARDED_PROTO: Final = "x-forwarded-proto"
# Hop-by-hop headers that agents address to a proxy; Envoy takes the others off by itself.
_FOR_THE_PROXY: Final = ("proxy-authorization", "proxy-connection")


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host (name or IP literal) and a port; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address: TypeAlias = TcpAddress | UnixAddress


@dataclass(frozen=True, slots=True)
class DynamicForward:
    """A forward proxy: the destination is the request's own authority, the very one that selected the chain."""


@dataclass(frozen=True, slots=True)
class FixedUpstream:
    """Everything goes to one address. No CONNECT: a tunnel to a shared address could carry any other host."""

    address: TcpAddress


Upstream: TypeAlias = DynamicForward | FixedUpstream


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Where agents connect, where the supervisor answers, and where requests go."""

    listen: Address
    processor: Address
    upstream: Upstream


def bootstrap(config: ProxyConfig, *, admin: UnixAddress) -> JsonObject:
    """Envoy's whole configuration: static, one listener, one filter chain."""
    return {
        "node": {"id": "supervisor", "cluster": "supervisor"},
        # Readiness and the bound port only: no config dump, no quitting, and a path only our user reaches.
        "admin": {"address": _address(admin), "allow_paths": [{"exact": "/ready"}, {"prefix": "/listeners"}]},
        "static_resources": {
            "listeners": [_listener(config)],
            "clusters": [_processor_cluster(config.processor), _upstream_cluster(config.upstream)],
        },
        "overload_manager": {
            "resource_monitors": [
                _extension(
                    "envoy.resource_monitors.global_downstream_max_connections",
                    "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    {"max_active_downstream_connections": MAX_CONNECTIONS},
                )
            ],
        },
    }


def ext_proc_filter(*hidden: str) -> JsonObject:
    """The filter on its own, for an Envoy that others configure (Envoy Gateway, Istio).

    `allow_mode_override` must stay: it is how a body is asked for, and without it bodies would pass unseen. `NONE` is
    the default body mode on purpose: `BUFFERED` refuses (413) what arrives faster than our first answer, and the
    others take the Content-Length off requests that nobody inspects (both measured, Envoy 1.40).
    `hidden` are headers that no agent can have sent: where that is not sure, hiding one would be a way past.
    """
    answer = f"{ANSWER_SECONDS}s"
    unseen = {"patterns": [{"exact": name} for name in hidden]}
    return _extension(
        "envoy.filters.http.ext_proc",
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        {
            "grpc_service": {"envoy_grpc": {"cluster_name": _PROCESSOR}},
            # RFC 0009 "Failure policy": on_error is a stage's. A supervisor that is not there is no reason to pass.
            "failure_mode_allow": False,
            "status_on_error": {"code": "ServiceUnavailable"},
            "allow_mode_override": True,
            "message_timeout": answer,
            "max_message_timeout": answer,
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "NONE",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SKIP",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
            **({"forward_rules": {"disallowed_headers": unseen}} if hidden else {}),
            # A mutation that Envoy would not make is an error, not a silent difference from what the chain returned.
            "mutation_rules": {"allow_envoy": True, "disallow_is_error": True},
        },
    )


def _extension(name: str, kind: str, config: JsonObject) -> JsonObject:
    return {"name": name, "typed_config": {"@type": _TYPE + kind, **config}}


def _address(address: Address) -> JsonObject:
    match address:
        case TcpAddress():
            return {"socket_address": {"address": address.host, "port_value": address.port}}
        case UnixAddress():
            return {"pipe": {"path": address.path, "mode": 0o600}}
        case _:
            assert_never(address)


def _listener(config: ProxyConfig) -> JsonObject:
    manager = _extension(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        _connection_manager(config.upstream),
    )
    return {
        "name": "agents",
        "address": _address(config.listen),
        "per_connection_buffer_limit_bytes": READ_BYTES,
        "filter_chains": [{"filters": [manager]}],
    }


def _connection_manager(upstream: Upstream) -> JsonObject:
    return {
        "stat_prefix": "agents",
        # RFC 0009 "Scope": inspectable HTTP/1.x. HTTP/2 would bring trailers and streams that no stage is shown.
        "codec_type": "HTTP1",
        "http_protocol_options": {
            "allow_absolute_url": True,
            "accept_http_10": True,
            # Content-Length beside Transfer-Encoding is the oldest smuggling trick; trailers are dropped unseen.
            "allow_chunked_length": False,
            "enable_trailers": False,
        },
        "common_http_protocol_options": {"idle_timeout": f"{IDLE_SECONDS}s", "max_headers_count": MAX_HEADERS_COUNT},
        "max_request_headers_kb": MAX_HEADERS_KIB,
        "stream_idle_timeout": f"{IDLE_SECONDS}s",
        "request_headers_timeout": f"{HEADERS_SECONDS}s",
        # Stages must see the path that the upstream acts on. Slashes and escapes inside it are data to many APIs.
        "normalize_path": True,
        "merge_slashes": False,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        # The listener is plain HTTP and so is what leaves: `https://` in an absolute form would only be a claim.
        "scheme_header_transformation": {"scheme_to_overwrite": "http"},
        "generate_request_id": False,
        "use_remote_address": False,
        "skip_xff_append": True,
        "server_header_transformation": "PASS_THROUGH",
        "early_header_mutation_extensions": [
            _extension(
                "envoy.http.early_header_mutation.header_mutation",
                "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                {"mutations": [{"remove": _FORWARDED_PROTO}]},
            )
        ],
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": _http_filters(upstream),
        "route_config": _routes(upstream),
    }


def _http_filters(upstream: Upstream) -> list[JsonObject]:
    router = _extension(
        "envoy.filters.http.router",
        "extensions.filters.http.router.v3.Router",
        {"suppress_envoy_headers": True},
    )
    inspect = ext_proc_filter(_FORWARDED_PROTO)
    match upstream:
        case DynamicForward():
            forward = _extension(
                "envoy.filters.http.dynamic_forward_proxy",
                "extensions.filters.http.dynamic_forward_proxy.v3.FilterConfig",
                {"dns_cache_config": _dns_cache()},
            )
            # Names are resolved after the verdict: a denied host is never looked up.
            return [inspect, forward, router]
        case FixedUpstream():
            return [inspect, router]
        case _:
            assert_never(upstream)


def _routes(upstream: Upstream) -> JsonObject:
    route = {"cluster": _UPSTREAM, "timeout": "0s", "idle_timeout": f"{IDLE_SECONDS}s"}
    tunnel = {"upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}]}
    connect = [{"match": {"connect_matcher": {}}, "route": {**route, **tunnel}}]
    everything = {"match": {"prefix": "/"}, "route": route}
    return {
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "request_body_buffer_limit": BUFFER_BYTES,
                "routes": [*(connect if isinstance(upstream, DynamicForward) else ()), everything],
                "request_headers_to_remove": [_FORWARDED_PROTO, *_FOR_THE_PROXY],
            }
        ],
    }


def _processor_cluster(address: Address) -> JsonObject:
    return {
        "name": _PROCESSOR,
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": _endpoint(_PROCESSOR, address),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }


def _upstream_cluster(upstream: Upstream) -> JsonObject:
    base: JsonObject = {"name": _UPSTREAM, "connect_timeout": "10s", "lb_policy": "ROUND_ROBIN"}
    match upstream:
        case DynamicForward():
            kind = _extension(
                "envoy.clusters.dynamic_forward_proxy",
                "extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
                {"dns_cache_config": _dns_cache()},
            )
            return {**base, "lb_policy": "CLUSTER_PROVIDED", "cluster_type": kind}
        case FixedUpstream(address):
            return {**base, "type": "STRICT_DNS", "load_assignment": _endpoint(_UPSTREAM, address)}
        case _:
            assert_never(upstream)


def _endpoint(cluster: str, address: Address) -> JsonObject:
    return {
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(address)}}]}],
    }


def _dns_cache() -> JsonObject:
    # Filter and cluster share one cache by having equal configurations. No search domains: in a cluster db.team would
    # be db.team.svc.cluster.local, past a selector for that (measured).
    cares = "extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
    options: JsonObject = {"dns_resolver_options": {"no_default_search_domain": True}}
    resolver = _extension("envoy.network.dns_resolver.cares", cares, options)
    return {"name": "agents", "dns_lookup_family": "V4_PREFERRED", "typed_dns_resolver_config": resolver}

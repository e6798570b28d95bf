"""The bootstrap: valid by Envoy's own messages, and closed where it counts."""

import json
from typing import Any

import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.extensions.clusters.dynamic_forward_proxy.v3 import cluster_pb2 as _1  # noqa: F401 - resolves Any
from envoy.extensions.filters.http.dynamic_forward_proxy.v3 import dynamic_forward_proxy_pb2 as _2  # noqa: F401
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2 as _3  # noqa: F401
from envoy.extensions.filters.http.router.v3 import router_pb2 as _4  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2 as _5,  # noqa: F401
)
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2 as _6  # noqa: F401
from envoy.extensions.network.dns_resolver.cares.v3 import cares_dns_resolver_pb2 as _9  # noqa: F401
from envoy.extensions.resource_monitors.downstream_connections.v3 import (
    downstream_connections_pb2 as _7,  # noqa: F401
)
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2 as _8  # noqa: F401
from google.protobuf import json_format

from supervisor_middleware.model.limits import CHAIN_TIMEOUT, MAX_BODY_BYTES
from supervisor_middleware.supervisor.envoy_config import (
    DynamicForward,
    FixedUpstream,
    ProxyConfig,
    TcpAddress,
    UnixAddress,
    Upstream,
    bootstrap,
    ext_proc_filter,
)
from supervisor_middleware.supervisor.permits import PATIENCE

UPSTREAMS = (DynamicForward(), FixedUpstream(TcpAddress("gateway.example", 8080)))


def a_bootstrap(upstream: Upstream = UPSTREAMS[1], *, listen: TcpAddress | UnixAddress | None = None) -> Any:
    config = ProxyConfig(
        listen=listen or TcpAddress("127.0.0.1", 3128),
        processor=UnixAddress("/run/smw/ext-proc.sock"),
        upstream=upstream,
    )
    return bootstrap(config, admin=UnixAddress("/run/smw/admin.sock"))


def the_manager(upstream: Upstream = UPSTREAMS[1]) -> Any:
    listener = a_bootstrap(upstream)["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("listen", [TcpAddress("::1", 3128), UnixAddress("/run/smw/proxy.sock")])
def test_it_is_a_bootstrap_by_envoys_own_schema(upstream: Upstream, listen: TcpAddress | UnixAddress) -> None:
    text = json.dumps(a_bootstrap(upstream, listen=listen))
    message = json_format.Parse(text, bootstrap_pb2.Bootstrap())
    assert len(message.static_resources.clusters) == 2


def test_equal_inputs_give_equal_bytes() -> None:
    assert json.dumps(a_bootstrap()) == json.dumps(a_bootstrap())


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_inspection_comes_before_everything_else_and_fails_closed(upstream: Upstream) -> None:
    first, *_, last = the_manager(upstream)["http_filters"]
    assert first["name"] == "envoy.filters.http.ext_proc"
    assert first["typed_config"]["failure_mode_allow"] is False
    assert first["typed_config"]["allow_mode_override"] is True
    assert first["typed_config"]["mutation_rules"]["disallow_is_error"] is True
    assert last["name"] == "envoy.filters.http.router"


def the_filter() -> Any:
    return ext_proc_filter()["typed_config"]


def test_the_filter_for_others_hides_no_header() -> None:
    assert "forward_rules" not in the_filter()


def test_an_answer_may_take_the_wait_and_the_whole_chain() -> None:
    config = the_filter()
    assert int(config["message_timeout"].removesuffix("s")) > (CHAIN_TIMEOUT + PATIENCE).total_seconds()
    assert config["max_message_timeout"] == config["message_timeout"]


def test_the_buffer_holds_more_than_the_largest_body() -> None:
    (host,) = the_manager()["route_config"]["virtual_hosts"]
    assert host["request_body_buffer_limit"] > MAX_BODY_BYTES


def test_only_a_forward_proxy_opens_tunnels() -> None:
    def tunnels(upstream: Upstream) -> bool:
        return "connect_matcher" in json.dumps(the_manager(upstream)["route_config"])

    assert [tunnels(u) for u in UPSTREAMS] == [True, False]


def test_nothing_about_a_request_is_logged_or_added() -> None:
    text = json.dumps(a_bootstrap())
    assert "access_log" not in text
    manager = the_manager()
    assert manager["generate_request_id"] is False
    assert manager["http_filters"][-1]["typed_config"]["suppress_envoy_headers"] is True


def test_agents_speak_http_1_only() -> None:
    assert the_manager()["codec_type"] == "HTTP1"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (TcpAddress("127.0.0.1", 1), "127.0.0.1:1"),
        (TcpAddress("::1", 1), "[::1]:1"),
        (UnixAddress("/run/x"), "unix:/run/x"),
    ],
)
def test_addresses_are_written_as_grpc_reads_them(address: TcpAddress | UnixAddress, text: str) -> None:
    assert str(address) == text


def test_a_name_is_resolved_as_it_was_matched() -> None:
    """With a search domain one host has two names, and a selector knows one of them."""
    resolvers = json.dumps(a_bootstrap(DynamicForward())).count('"no_default_search_domain": true')
    assert resolvers == 2, "the filter's and the cluster's"

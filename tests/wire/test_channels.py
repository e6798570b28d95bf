"""Where channels are dialled to, and when a certificate is shown."""

import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.registration import ClientAuthentication
from supervisor_middleware.wire.channels import OPTIONS, dial_target, shows_certificate
from tests.builders import a_connection


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("https://acme.svc:8443", "dns:///acme.svc:8443"),
        ("https://acme.svc", "dns:///acme.svc:443"),
        ("http://acme.svc/", "dns:///acme.svc:80"),
        ("https://[2001:db8::1]:8443", "dns:///[2001:db8::1]:8443"),
        ("https://192.0.2.1", "dns:///192.0.2.1:443"),
        ("https://unix:1", "dns:///unix:1"),
    ],
)
def test_an_endpoint_is_dialled_by_dns_whatever_it_is_called(endpoint: str, target: str) -> None:
    assert dial_target(endpoint) == target


@pytest.mark.parametrize(
    "endpoint",
    [
        "acme.svc:443",
        "ftp://acme.svc",
        "https://",
        "https://acme.svc:99999",
        "https://acme.svc:x",
        "https://user@acme.svc",
        "https://acme.svc/path",
        "https://acme.svc?query",
        "https://acme.svc#fragment",
    ],
)
def test_anything_else_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidInput):
        dial_target(endpoint)


def test_a_certificate_is_shown_over_mutual_tls_only() -> None:
    assert shows_certificate(a_connection())
    assert not shows_certificate(a_connection("http://acme.svc"))
    assert not shows_certificate(a_connection(client_authentication=ClientAuthentication.NONE))


def test_a_service_that_is_stuck_or_gone_without_a_word_is_missed_after_half_a_minute() -> None:
    options = dict(OPTIONS)
    # The one bounds what TCP may owe us, the other what the service itself does.
    for patience in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
        assert 0 < int(options["grpc.keepalive_time_ms"]) + int(options[patience]) <= 30_000

"""Manifests and accepted registrations: what they are named by, what is in force, and what comes back from JSON."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.manifest import Dialect, Manifest, Operation, effective_timeout
from supervisor_middleware.model.registration import ClientAuthentication, Registration
from tests.builders import NOW, a_binding, a_connection, a_manifest, an_accepted_registration

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dialect", "bindings", "name", "id", "connection", "createdAt"]), inner)
    ),
    max_leaves=8,
)


def test_the_digest_ignores_name_version_and_order_of_bindings() -> None:
    one, two = a_binding("acme/a"), a_binding("acme/b")
    assert a_manifest(one, two, version="1").digest == a_manifest(two, one, version="2").digest


@pytest.mark.parametrize(
    "other",
    [
        a_manifest(a_binding("acme/b")),
        a_manifest(a_binding("acme/a", max_body_bytes=1)),
        a_manifest(a_binding("acme/a", timeout="1s")),
        a_manifest(a_binding("acme/a", operation=Operation.WEBSOCKET_MESSAGE)),
        a_manifest(a_binding("acme/a"), dialect=Dialect.RELEASED),
    ],
)
def test_the_digest_tells_apart_what_policies_depend_on(other: Manifest) -> None:
    assert other.digest != a_manifest(a_binding("acme/a")).digest


def test_a_manifest_with_any_64_bit_limit_has_a_digest() -> None:
    assert a_manifest(a_binding(max_body_bytes=2**64 - 1)).digest.startswith("sha256:")


@pytest.mark.parametrize(
    ("dialect", "advertised", "expected"),
    [
        (Dialect.RFC0009, "", 500),
        (Dialect.RFC0009, "2s", 2000),
        (Dialect.RFC0009, "20ms", 20),
        (Dialect.RELEASED, "", 500),
        (Dialect.RELEASED, "2s", 500),
        (Dialect.RELEASED, "20ms", 20),
    ],
)
def test_a_binding_overrides_the_timeout_and_a_released_one_only_shortens_it(
    dialect: Dialect, advertised: str, expected: int
) -> None:
    timeout = effective_timeout(
        registration=timedelta(milliseconds=500), binding=a_binding(timeout=advertised), dialect=dialect
    )
    assert timeout == timedelta(milliseconds=expected)


def test_a_registration_comes_back_from_json() -> None:
    registration = an_accepted_registration(
        connection=a_connection(
            timeout=timedelta(seconds=2),
            ca_bundle_pem="PEM",
            server_name="other",
            client_authentication=ClientAuthentication.NONE,
        ),
        manifest=a_manifest(a_binding(timeout="2s"), dialect=Dialect.RELEASED),
        declared_bindings=["acme/redactor"],
    )
    assert Registration.from_json(json.loads(json.dumps(registration.to_json()))) == registration


def test_a_registration_knows_its_bindings_and_their_timeouts() -> None:
    registration = an_accepted_registration(manifest=a_manifest(a_binding("acme/a", timeout="1s")))
    found = registration.binding("acme/a")
    assert found is not None
    assert registration.timeout_of(found) == timedelta(seconds=1)
    assert registration.binding("acme/b") is None


def test_only_http_is_insecure() -> None:
    assert a_connection("http://service:80").is_insecure
    assert not a_connection().is_insecure


def test_a_time_of_creation_without_a_zone_is_refused_since_it_compares_with_none() -> None:
    stored = {**an_accepted_registration().to_json(), "createdAt": datetime.isoformat(NOW.replace(tzinfo=None))}
    with pytest.raises(ValueError, match="no time zone"):
        Registration.from_json(stored)


@given(json_values)
def test_anything_else_is_refused_with_the_errors_that_are_promised(value: Any) -> None:
    for kind in (Manifest, Registration):
        with pytest.raises((KeyError, TypeError, ValueError)):
            kind.from_json(value)


def test_what_is_kept_of_a_services_texts_is_plain_or_the_word_invalid() -> None:
    bindings = (a_binding(),)
    manifest = Manifest(name="Talk & more", service_version="1.0.0+b", dialect=Dialect.RFC0009, bindings=bindings)
    assert [manifest.to_json()[key] for key in ("name", "serviceVersion")] == ["invalid", "1.0.0+b"]
    assert Manifest.from_json(manifest.to_json()).digest == manifest.digest

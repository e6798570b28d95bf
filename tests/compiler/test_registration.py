"""What goldens do not show of registrations: certificates, connections, and who is asked again."""

from typing import Any

import pytest
import trustme

from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.model.registration import ClientAuthentication
from supervisor_middleware.model.snapshot import BundleKey
from supervisor_middleware.model.verdict import Described
from supervisor_middleware.model.violation import Reason, Report
from tests.builders import a_manifest, a_registration, an_accepted_registration, some_settings

PEM = trustme.CA().cert_pem.bytes().decode()
KEY = trustme.CA().issue_cert("a.test").private_key_pem.bytes().decode()
REFERENCE = {"kind": "ConfigMap", "namespace": "team-a", "name": "roots", "key": "ca.pem"}
WHERE = BundleKey("ConfigMap", "team-a", "roots", "ca.pem")


def drafted(*, bundles: dict[BundleKey, str] | None = None, **fields: Any) -> tuple[RegistrationDraft, Report]:
    return draft_registration(a_registration(**fields), bundles=bundles or {}, settings=some_settings())


def test_a_bundle_replaces_the_roots() -> None:
    draft, report = drafted(tls={"caBundle": PEM, "serverName": "other.test"})
    assert report.is_valid
    assert draft.connection is not None
    assert draft.connection.ca_bundle_pem == PEM
    assert draft.connection.server_name == "other.test"


def test_a_referenced_bundle_is_taken_from_where_it_is() -> None:
    draft, report = drafted(tls={"caBundleRef": REFERENCE}, bundles={WHERE: PEM})
    assert report.is_valid
    assert draft.connection is not None
    assert draft.connection.ca_bundle_pem == PEM


@pytest.mark.parametrize(
    "text", ["no PEM", KEY, PEM + KEY, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_bundle_is_refused_wherever_it_stands_and_never_repeated(text: str) -> None:
    for fields, bundles in (({"caBundle": text}, {}), ({"caBundleRef": REFERENCE}, {WHERE: text})):
        _, report = drafted(tls=fields, bundles=bundles)
        assert [v.reason for v in report.violations] == [Reason.INVALID_CA_BUNDLE]
        assert text not in str(report.violations[0])


def test_a_missing_bundle_and_two_bundles_are_refused() -> None:
    _, missing = drafted(tls={"caBundleRef": REFERENCE})
    assert [(v.path, v.reason) for v in missing.violations] == [("spec.tls.caBundleRef", Reason.REFERENCE_NOT_FOUND)]
    assert "ConfigMap team-a/roots key ca.pem" in missing.violations[0].message
    _, both = drafted(tls={"caBundle": PEM, "caBundleRef": REFERENCE}, bundles={WHERE: PEM})
    assert [(v.path, v.reason) for v in both.violations] == [("spec.tls", Reason.MALFORMED)]


@pytest.mark.parametrize(
    ("endpoint", "canonical"),
    [
        ("https://svc.test", "https://svc.test:443"),
        ("https://SVC.test./", "https://svc.test:443"),
        ("https://svc.test:8443", "https://svc.test:8443"),
        ("https://[2001:DB8::1]", "https://[2001:db8::1]:443"),
    ],
)
def test_an_endpoint_has_one_spelling_with_its_port(endpoint: str, canonical: str) -> None:
    draft, _ = drafted(grpcEndpoint=endpoint)
    assert draft.connection is not None
    assert draft.connection.endpoint == canonical


def test_what_is_not_set_has_the_documented_defaults() -> None:
    draft, _ = drafted(tls={"serverName": None}, bindings=None)
    assert draft.connection is not None
    assert draft.connection.timeout.total_seconds() == 0.5
    assert draft.connection.client_authentication is ClientAuthentication.MUTUAL_TLS
    assert draft.connection.ca_bundle_pem == ""
    assert draft.declared_bindings == ()


def test_a_draft_that_must_not_be_dialled_is_not_accepted_whatever_is_described() -> None:
    draft, _ = drafted(maxBodyBytes=0)
    accepted, report = accept_registration(draft, Described(a_manifest()), others=[])
    assert accepted is None
    assert report.is_valid


def test_a_registration_described_again_does_not_conflict_with_itself() -> None:
    draft, _ = drafted()
    itself = an_accepted_registration("acme", uid=draft.uid)
    accepted, report = accept_registration(draft, Described(a_manifest()), others=[itself])
    assert report.is_valid
    assert accepted == itself


def test_a_description_of_another_kind_is_a_bug() -> None:
    draft, _ = drafted()
    with pytest.raises(AssertionError):
        accept_registration(draft, "described", others=[])  # type: ignore[arg-type]

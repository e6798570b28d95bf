"""What goldens do not show of registrations: certificates, connections, and who is asked again."""

from datetime import timedelta
from typing import Any

import pytest
import trustme

from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.registration import ClientAuthentication, Registration
from supervisor_middleware.model.snapshot import BundleKey
from supervisor_middleware.model.verdict import Described
from supervisor_middleware.model.violation import Reason, Report
from tests.builders import NOW, a_binding, a_manifest, a_registration, an_accepted_registration, some_settings

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


def test_every_violation_says_what_to_do_next() -> None:
    wrong: dict[str, Any] = {
        "grpcEndpoint": "http://127.0.0.1:0", "maxBodyBytes": 0, "timeout": "9ms", "bindings": ["a b"], "audience": "x",
        "tls": {"caBundle": "x", "serverName": ""}, "clientAuthentication": "Token", "registrationName": "a//b",
        "allowInsecure": "yes",
    }  # fmt: skip
    for field, value in wrong.items():
        _, report = drafted(**{field: value})
        assert report.violations, field
        assert all(v.hint for v in report.violations), report.violations


def test_what_was_accepted_before_claims_were_kept_claims_its_bindings() -> None:
    for accepted in (
        an_accepted_registration("acme"),
        an_accepted_registration("acme", declared_bindings=["a/listed"]),
    ):
        form = {k: v for k, v in accepted.to_json().items() if k != "claims"}
        assert Registration.from_json(form) == accepted
        assert Registration.from_json(accepted.to_json()) == accepted


def test_claims_survive_an_edit_that_takes_the_list_away() -> None:
    listed = an_accepted_registration("acme", declared_bindings=["acme/redactor", "acme/later"])
    draft, _ = drafted()
    manifest = a_manifest(a_binding(), a_binding("acme/later"), a_binding("acme/third"))
    accepted, report = accept_registration(draft, Described(manifest), others=[listed])
    assert accepted is not None
    assert (accepted.claims, accepted.declared_bindings) == (("acme/redactor", "acme/later"), ())
    assert accepted.binding("acme/third") is None
    assert [w.path for w in report.warnings] == ["spec.bindings"]


def test_more_of_the_service_changes_nothing_that_verdicts_are_kept_by() -> None:
    draft, _ = drafted(bindings=["acme/redactor"])
    one, _ = accept_registration(draft, Described(a_manifest()), others=[])
    more, _ = accept_registration(draft, Described(a_manifest(a_binding("acme/more"), a_binding())), others=[])
    assert one is not None
    assert one == more
    assert one.manifest.digest == a_manifest().digest


def test_a_service_of_both_dialects_keeps_its_claims() -> None:
    """Rolled over to the released dialect and back: its name is its own, and so is what it had."""
    before = an_accepted_registration("acme")
    draft, _ = drafted()
    released = a_manifest(a_binding("acme"), dialect=Dialect.RELEASED)
    rolled, report = accept_registration(draft, Described(released), others=[before])
    assert rolled is not None
    assert (rolled.claims, rolled.owned, report.warnings) == (
        ("acme/redactor",),
        frozenset({"acme", "acme/redactor"}),
        (),
    )
    back, _ = accept_registration(draft, Described(a_manifest()), others=[rolled])
    assert back == before


def test_of_two_accepted_with_one_binding_the_older_is_told_nothing() -> None:
    older = an_accepted_registration("older", created_at=NOW - timedelta(days=1))
    newer = an_accepted_registration("newer")
    for name, created, reasons in (
        ("older", older.created_at, []),
        ("newer", newer.created_at, [Reason.DUPLICATE_BINDING]),
    ):
        draft, _ = draft_registration(a_registration(name, created_at=created), bundles={}, settings=some_settings())
        _, report = accept_registration(draft, Described(a_manifest()), others=[older, newer])
        assert [v.reason for v in report.violations] == reasons


def test_an_accepted_registration_is_not_told_of_an_older_draft() -> None:
    older, _ = draft_registration(
        a_registration("older", created_at=NOW - timedelta(days=1), bindings=["acme/redactor"]),
        bundles={},
        settings=some_settings(),
    )
    draft, _ = drafted()
    itself = an_accepted_registration("acme", uid=draft.uid)
    accepted, report = accept_registration(draft, Described(a_manifest()), others=[itself], drafts=[older, draft])
    assert (accepted, report.is_valid) == (itself, True)
    accepted, report = accept_registration(draft, Described(a_manifest()), others=[], drafts=[older, draft])
    assert (accepted, [v.reason for v in report.violations]) == (None, [Reason.DUPLICATE_BINDING])


def test_an_id_that_is_none_is_never_repeated() -> None:
    manifest = a_manifest(a_binding(), a_binding("\x1b[31mred"), a_binding("x" * 10_240))
    for bindings in (None, ["acme/redactor"]):
        draft, _ = drafted(bindings=bindings)
        _, report = accept_registration(draft, Described(manifest), others=[])
        assert [v.reason for v in report.violations] == [Reason.INVALID_MANIFEST] * 2
        assert not any("red" in str(p).replace("redactor", "") or "xxx" in str(p) for p in report.violations)
        assert report.warnings == ()


def test_a_description_of_another_kind_is_a_bug() -> None:
    draft, _ = drafted()
    with pytest.raises(AssertionError):
        accept_registration(draft, "described", others=[])  # type: ignore[arg-type]

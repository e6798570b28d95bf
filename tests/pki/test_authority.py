"""The authority: what it signs, what no request can make it sign, and which roots it accepts."""

from datetime import datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import should_renew
from supervisor_middleware.pki.keys import PrivateKey, key_to_pem, new_key, new_key_and_csr
from tests.pki.builders import (
    DAY,
    NOW,
    POD_UID,
    TRUST_DOMAIN,
    an_authority,
    an_identity,
    leaf_of,
    supervisor_credentials,
)

AUTHORITY = an_authority()
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH


def usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def a_greedy_csr() -> bytes:
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, f"operator.{TRUST_DOMAIN}"),
                    x509.NameAttribute(NameOID.SERIAL_NUMBER, "another-pod"),
                ]
            )
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([SERVER]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"operator.{TRUST_DOMAIN}")]), critical=False)
    )
    return request.sign(new_key(), hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_root_may_issue_leaves_and_nothing_else() -> None:
    extensions = AUTHORITY.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert names(AUTHORITY.certificate).get_values_for_type(x509.UniformResourceIdentifier) == [
        f"spiffe://{TRUST_DOMAIN}"
    ]


def test_a_root_lives_ten_years_unless_told_otherwise() -> None:
    assert AUTHORITY.expires_at == NOW + timedelta(days=3650)
    assert an_authority(lifetime=DAY).expires_at == NOW + DAY


def test_two_roots_of_one_trust_domain_have_two_names() -> None:
    assert an_authority().certificate.subject != an_authority().certificate.subject


def test_an_authority_does_not_show_its_key() -> None:
    shown = f"{AUTHORITY} {AUTHORITY!r}"
    assert "key" not in shown.lower()
    assert TRUST_DOMAIN in shown


def test_a_supervisor_gets_a_client_certificate_for_its_sandbox_and_pod() -> None:
    _, csr = new_key_and_csr()
    issued = AUTHORITY.issue_supervisor(csr, identity=an_identity(), now=NOW, lifetime=DAY)
    leaf = leaf_of(issued.certificate_chain_pem)
    assert usages(leaf) == [CLIENT]
    assert list(names(leaf)) == [x509.UniformResourceIdentifier(f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/coder")]
    assert leaf.subject == x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, POD_UID)])
    assert issued.expires_at == leaf.not_valid_after_utc == NOW + DAY


def test_nothing_that_a_signing_request_asks_for_is_granted() -> None:
    issued = AUTHORITY.issue_supervisor(a_greedy_csr(), identity=an_identity(), now=NOW)
    leaf = leaf_of(issued.certificate_chain_pem)
    assert usages(leaf) == [CLIENT]
    assert not names(leaf).get_values_for_type(x509.DNSName)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.subject.rfc4514_string() == f"2.5.4.5={POD_UID}"


def test_the_operator_is_server_and_client_under_its_own_name() -> None:
    credentials = AUTHORITY.issue_operator(
        namespace="system", dns_names=["enrol.system.svc"], ip_addresses=[ip_address("127.0.0.1")], now=NOW
    )
    found = names(credentials.leaf)
    assert usages(credentials.leaf) == [SERVER, CLIENT]
    assert found.get_values_for_type(x509.DNSName) == [f"operator.{TRUST_DOMAIN}", "enrol.system.svc"]
    assert found.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1")]
    assert str(credentials.spiffe_id) == f"spiffe://{TRUST_DOMAIN}/ns/system/operator"
    assert credentials.trust_bundle_pem == AUTHORITY.certificate_pem


def test_a_plain_server_is_a_server_only() -> None:
    credentials = AUTHORITY.issue_server(dns_names=["webhook.system.svc", "localhost"], now=NOW)
    assert usages(credentials.leaf) == [SERVER]
    assert not names(credentials.leaf).get_values_for_type(x509.UniformResourceIdentifier)


def test_no_plain_server_gets_the_operators_name() -> None:
    with pytest.raises(InvalidInput, match="operator's own name"):
        AUTHORITY.issue_server(dns_names=["a.test", f"operator.{TRUST_DOMAIN}"], now=NOW)


@pytest.mark.parametrize("name", ["*.example.test", "Example.test", "a..b", "example.test.", "a b", ""])
def test_a_server_name_is_a_plain_dns_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="DNS name"):
        AUTHORITY.issue_server(dns_names=[name], now=NOW)


def test_a_server_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs a DNS name or an IP address"):
        AUTHORITY.issue_server(now=NOW)


def test_leaves_begin_five_minutes_early_also_under_a_fresh_root() -> None:
    leaf = supervisor_credentials(an_authority(now=NOW), now=NOW)
    assert leaf.not_before == NOW - timedelta(minutes=5)
    assert leaf.expires_at == NOW + DAY


@given(
    age=st.timedeltas(min_value=timedelta(), max_value=10 * DAY - timedelta(seconds=2)),
    lifetime=st.timedeltas(min_value=timedelta(seconds=2), max_value=100 * DAY),
)
def test_no_leaf_outlives_or_predates_its_root_or_is_due_at_birth(age: timedelta, lifetime: timedelta) -> None:
    root = an_authority(lifetime=10 * DAY)
    now = NOW + age
    leaf = supervisor_credentials(root, now=now, lifetime=lifetime)
    assert root.not_before <= leaf.not_before <= now < leaf.expires_at <= root.expires_at
    assert not should_renew(now, not_before=leaf.not_before, not_after=leaf.expires_at, jitter=0)


@pytest.mark.parametrize("now", [NOW - DAY, NOW + 10 * DAY, NOW + 11 * DAY])
def test_a_root_outside_its_time_issues_nothing(now: datetime) -> None:
    with pytest.raises(InvalidInput, match="valid from"):
        supervisor_credentials(an_authority(lifetime=10 * DAY), now=now)


@pytest.mark.parametrize("lifetime", [timedelta(), -DAY, timedelta(milliseconds=1)])
def test_a_lifetime_is_positive(lifetime: timedelta) -> None:
    with pytest.raises(InvalidInput, match="a second or more"):
        an_authority(lifetime=lifetime)
    with pytest.raises(InvalidInput, match="a second or more"):
        supervisor_credentials(AUTHORITY, lifetime=lifetime)


@pytest.mark.parametrize("trust_domain", ["", "Example.test", "a_b", "a/b", "a" * 250])
def test_a_trust_domain_is_a_dns_name(trust_domain: str) -> None:
    with pytest.raises(InvalidInput, match="trust domain"):
        an_authority(trust_domain=trust_domain)


def test_a_stored_root_loads_and_issues() -> None:
    loaded = Authority.load(AUTHORITY.certificate_pem, AUTHORITY.private_key_pem, trust_domain=TRUST_DOMAIN, now=NOW)
    assert loaded == AUTHORITY
    supervisor_credentials(loaded).leaf.verify_directly_issued_by(AUTHORITY.certificate)


BASIC = (x509.BasicConstraints(ca=True, path_length=None), True)
SIGNS = (AUTHORITY.certificate.extensions.get_extension_for_class(x509.KeyUsage).value, True)
SIGNS_NOT = (supervisor_credentials(AUTHORITY).leaf.extensions.get_extension_for_class(x509.KeyUsage).value, True)


def a_supplied_root(
    key: PrivateKey, *extensions: tuple[x509.ExtensionType, bool], name: str = "corporate root"
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    builder = (
        x509.CertificateBuilder(
            issuer_name=subject, subject_name=subject, public_key=key.public_key(), serial_number=7
        )
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 10 * DAY)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)], ids=["P-384", "RSA"]
)
def test_a_supplied_root_issues(key: PrivateKey) -> None:
    key_id = (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    pem = a_supplied_root(key, BASIC, SIGNS, key_id)
    loaded = Authority.load(pem, key_to_pem(key), trust_domain=TRUST_DOMAIN, now=NOW)
    leaf = supervisor_credentials(loaded, lifetime=100 * DAY)
    leaf.leaf.verify_directly_issued_by(loaded.certificate)
    assert leaf.expires_at == loaded.expires_at


def test_everything_wrong_with_a_root_is_told_at_once() -> None:
    key = new_key()
    purposes = (x509.ExtendedKeyUsage([SERVER]), False)
    pem = a_supplied_root(key, purposes, SIGNS_NOT, name="")
    with pytest.raises(InvalidInput) as caught:
        Authority.load(pem, key_to_pem(new_key()), trust_domain=TRUST_DOMAIN, now=NOW + 20 * DAY)
    for problem in (
        "another certificate",
        "expired",
        "CA:TRUE",
        "keyCertSign",
        "subject key identifier",
        "extendedKeyUsage",
        "subject is empty",
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("extensions", "problem"),
    [
        (((x509.BasicConstraints(ca=True, path_length=None), False), SIGNS), "critical"),
        (((x509.BasicConstraints(ca=False, path_length=None), True), SIGNS), "CA:TRUE"),
        ((BASIC,), "keyCertSign"),
        (((x509.UnrecognizedExtension(x509.BasicConstraints.oid, b"junk"), True),), "cannot be read"),
    ],
)
def test_what_a_strict_peer_would_refuse_is_no_root(
    extensions: tuple[tuple[x509.ExtensionType, bool], ...], problem: str
) -> None:
    key = new_key()
    pem = a_supplied_root(key, *extensions)
    with pytest.raises(InvalidInput, match=problem):
        Authority.load(pem, key_to_pem(key), trust_domain=TRUST_DOMAIN, now=NOW)


def test_a_root_of_another_trust_domain_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"the root of spiffe://example\.test, not of spiffe://other\.test"):
        Authority.load(AUTHORITY.certificate_pem, AUTHORITY.private_key_pem, trust_domain="other.test", now=NOW)


def test_a_root_that_is_not_yet_valid_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not valid before"):
        Authority.load(AUTHORITY.certificate_pem, AUTHORITY.private_key_pem, trust_domain=TRUST_DOMAIN, now=NOW - DAY)


def test_an_intermediate_is_refused() -> None:
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "intermediate")])
    pem = (
        x509.CertificateBuilder(
            issuer_name=AUTHORITY.certificate.subject,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=7,
        )
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .sign(AUTHORITY.private_key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    with pytest.raises(InvalidInput, match="not self-signed"):
        Authority.load(pem, key_to_pem(key), trust_domain=TRUST_DOMAIN, now=NOW)


def test_a_bundle_is_no_root() -> None:
    pem = AUTHORITY.certificate_pem + an_authority().certificate_pem
    with pytest.raises(InvalidInput, match="one certificate is needed, 2 are there"):
        Authority.load(pem, AUTHORITY.private_key_pem, trust_domain=TRUST_DOMAIN, now=NOW)

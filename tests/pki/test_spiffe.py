"""SPIFFE identities: what parses, what does not, and what a certificate may say about its holder."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.pki.keys import new_key
from supervisor_middleware.pki.spiffe import (
    SandboxIdentity,
    SpiffeId,
    operator_id,
    operator_server_name,
    sandbox_identity,
    spiffe_id_of,
    supervisor_id,
)
from tests.pki.builders import NOW, POD_UID, TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
subdomains = st.lists(labels, min_size=1, max_size=3).map(".".join)


def a_certificate(*, uris: tuple[str, ...] = (), serial_numbers: tuple[str, ...] = (POD_UID,)) -> bytes:
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, value) for value in serial_numbers])
    builder = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_ids_have_the_form_the_design_gives_them() -> None:
    assert str(supervisor_id("td.test", namespace="ns", sandbox="box")) == "spiffe://td.test/ns/ns/sandbox/box"
    assert str(operator_id("td.test", "system")) == "spiffe://td.test/ns/system/operator"
    assert str(SpiffeId(trust_domain="td.test")) == "spiffe://td.test"
    assert operator_server_name("td.test") == "operator.td.test"


@given(trust_domain=subdomains, namespace=labels, sandbox=subdomains)
def test_every_id_parses_back_to_itself(trust_domain: str, namespace: str, sandbox: str) -> None:
    for spiffe_id in (
        supervisor_id(trust_domain, namespace=namespace, sandbox=sandbox),
        operator_id(trust_domain, namespace),
    ):
        assert SpiffeId.parse(str(spiffe_id)) == spiffe_id


@given(st.text())
def test_whatever_parses_is_spelled_as_it_was(text: str) -> None:
    try:
        spiffe_id = SpiffeId.parse("spiffe://" + text)
    except InvalidInput:
        return
    assert str(spiffe_id) == "spiffe://" + text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://td.test/ns/a/operator",
        "SPIFFE://td.test/a",
        "spiffe://",
        "spiffe:///ns/a",
        "spiffe://TD.test/a",
        "spiffe://td.test/",
        "spiffe://td.test//a",
        "spiffe://td.test/a/",
        "spiffe://td.test/a/../b",
        "spiffe://td.test/./b",
        "spiffe://td.test/a?b",
        "spiffe://td.test/a#b",
        "spiffe://td.test/a%2fb",
        "spiffe://td.test/a\n",
        "spiffe://user@td.test/a",
        "spiffe://td.test:443/a",
        "spiffe://td..test/a",
        "spiffe://" + "a" * 64 + "/a",
        "spiffe://" + ".".join(["a" * 60] * 4) + "." + "a" * 10 + "/a",
    ],
)
def test_what_is_no_spiffe_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        SpiffeId.parse(text)


@pytest.mark.parametrize("namespace", ["", "a.b", "A", "a/b", "-a", "a" * 64, "a\n"])
def test_a_namespace_is_a_dns_label(namespace: str) -> None:
    with pytest.raises(InvalidInput, match="namespace"):
        supervisor_id(TRUST_DOMAIN, namespace=namespace, sandbox="box")
    with pytest.raises(InvalidInput, match="namespace"):
        operator_id(TRUST_DOMAIN, namespace)


@pytest.mark.parametrize("sandbox", ["", "a/b", "..", "Box", "a_b", "a" * 254])
def test_a_sandbox_is_a_dns_name(sandbox: str) -> None:
    with pytest.raises(InvalidInput, match="sandbox"):
        an_identity(sandbox=sandbox)


@pytest.mark.parametrize("pod_uid", ["", "a" * 65, "a/b", "ü"])
def test_a_pod_uid_fits_into_a_subject(pod_uid: str) -> None:
    with pytest.raises(InvalidInput, match="Pod UID"):
        an_identity(pod_uid=pod_uid)


@given(namespace=labels, sandbox=subdomains, pod_uid=st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True))
def test_an_identity_survives_its_certificate(namespace: str, sandbox: str, pod_uid: str) -> None:
    identity = SandboxIdentity(namespace=namespace, sandbox=sandbox, pod_uid=pod_uid)
    uri = str(supervisor_id(TRUST_DOMAIN, namespace=namespace, sandbox=sandbox))
    pem = a_certificate(uris=(uri,), serial_numbers=(pod_uid,))
    assert sandbox_identity(pem, trust_domain=TRUST_DOMAIN) == identity


def test_an_issued_certificate_names_its_sandbox() -> None:
    credentials = supervisor_credentials(an_authority(), identity=an_identity())
    assert sandbox_identity(credentials.certificate_chain_pem, trust_domain=TRUST_DOMAIN) == an_identity()


def test_the_operators_certificate_is_no_sandbox() -> None:
    credentials = an_authority().issue_operator(namespace="system", now=NOW)
    with pytest.raises(Untrusted, match="is not a sandbox"):
        sandbox_identity(credentials.certificate_chain_pem, trust_domain=TRUST_DOMAIN)


BOX = f"spiffe://{TRUST_DOMAIN}/ns/a/sandbox/b"


@pytest.mark.parametrize(
    ("pem", "problem"),
    [
        (b"junk", "cannot be read"),
        (a_certificate(), "0 URI names"),
        (a_certificate(uris=(BOX, BOX)), "2 URI names"),
        (a_certificate(uris=("https://example.test/",)), "not a SPIFFE ID"),
        (a_certificate(uris=("spiffe://other.test/ns/a/sandbox/b",)), "trust domain other.test"),
        (a_certificate(uris=(f"spiffe://{TRUST_DOMAIN}",)), "is not a sandbox"),
        (a_certificate(uris=(f"{BOX}/more",)), "is not a sandbox"),
        (a_certificate(uris=(f"spiffe://{TRUST_DOMAIN}/ns/a_b/sandbox/b",)), "names no sandbox"),
        (a_certificate(uris=(BOX,), serial_numbers=()), "serialNumber"),
        (a_certificate(uris=(BOX,), serial_numbers=("a", "b")), "serialNumber"),
        (a_certificate(uris=(BOX,), serial_numbers=("not a uid",)), "names no sandbox"),
    ],
)
def test_a_certificate_that_names_no_sandbox_of_ours_is_not_trusted(pem: bytes, problem: str) -> None:
    with pytest.raises(Untrusted, match=problem):
        sandbox_identity(pem, trust_domain=TRUST_DOMAIN)


def test_a_certificate_with_unreadable_names_is_not_trusted() -> None:
    key = new_key()
    broken = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x03\x86\x01\xff")
    certificate = (
        x509.CertificateBuilder(
            issuer_name=x509.Name([]), subject_name=x509.Name([]), public_key=key.public_key(), serial_number=1
        )
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(broken, critical=False)
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(Untrusted, match="extensions cannot be read"):
        spiffe_id_of(certificate)

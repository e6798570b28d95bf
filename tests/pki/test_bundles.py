"""Trust bundles: read strictly, compared by content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.bundles import MAX_BUNDLE_BYTES, bundle_digest, parse_bundle
from tests.pki.builders import an_authority

ROOTS = tuple(an_authority() for _ in range(3))
PEMS = tuple(root.certificate_pem for root in ROOTS)


def test_a_bundle_gives_its_certificates_in_order() -> None:
    assert parse_bundle(PEMS[1] + PEMS[0]) == (ROOTS[1].certificate, ROOTS[0].certificate)


def test_comments_between_certificates_are_allowed() -> None:
    assert len(parse_bundle(b"# Our root\n" + PEMS[0] + b"\n\n# The next one\n" + PEMS[1])) == 2


@given(st.permutations(PEMS), st.booleans(), st.sampled_from([b"", b"\n\n", b"# a comment\n"]))
def test_the_digest_depends_on_the_roots_alone(pems: list[bytes], is_crlf: bool, gap: bytes) -> None:  # noqa: FBT001
    pem = gap.join([*pems, pems[0]])
    spelled = pem.replace(b"\n", b"\r\n") if is_crlf else pem
    assert bundle_digest(spelled) == bundle_digest(b"".join(PEMS))


def test_other_roots_have_another_digest() -> None:
    assert len({bundle_digest(PEMS[0]), bundle_digest(PEMS[1]), bundle_digest(PEMS[0] + PEMS[1])}) == 3
    assert bundle_digest(PEMS[0]).startswith("sha256:")


@pytest.mark.parametrize(
    ("pem", "problem"),
    [
        (b"", "no certificate"),
        (b"words only", "no certificate"),
        (PEMS[0] + ROOTS[0].private_key_pem.reveal(), "private key"),
        (PEMS[0].replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"), "only CERTIFICATE blocks"),
        (PEMS[0] + PEMS[1][:200], "cut off"),
        (PEMS[0][: len(PEMS[0]) // 2], "cut off"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        (b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n", "cannot be read"),
        (PEMS[0] + b"-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n", "cannot be read"),
        (b" " * (MAX_BUNDLE_BYTES + 1), "larger than"),
    ],
)
def test_what_is_no_bundle_is_refused(pem: bytes, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_bundle(pem)


@given(st.integers(min_value=0, max_value=len(PEMS[0]) - 2))
def test_a_bundle_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput):
        parse_bundle(PEMS[0][:length])

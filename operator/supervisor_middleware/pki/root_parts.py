"""Roots as named parts, as a Secret or a file holds them. PURE.

`tls.crt` and `tls.key` are the root that issues, for older versions and for those who supply one (cert-manager);
`next.*` is the one that will, `retired.crt` are those that did.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.succession import Succession, split_roots

CURRENT: Final = "tls"
SUCCESSOR: Final = "next"
RETIRED: Final = "retired.crt"

Parts = Mapping[str, bytes]


def parts_of(succession: Succession) -> dict[str, bytes | None]:
    """Every part of it."""
    return {
        **pair_of(CURRENT, succession.current),
        **pair_of(SUCCESSOR, succession.successor),
        RETIRED: b"".join(succession.retired) or None,
    }


def succession_from(parts: Parts, *, trust_domain: str, now: datetime) -> Succession:
    """What `parts_of` wrote.

    Raises:
        InvalidInput: a part is missing or no good.
    """
    return Succession(
        current=authority_from(parts, CURRENT, trust_domain=trust_domain, now=now),
        successor=successor_from(parts, trust_domain=trust_domain, now=now),
        retired=split_roots(parts.get(RETIRED, b"")),
    )


def authority_from(parts: Parts, name: str, *, trust_domain: str, now: datetime) -> Authority:
    """The root kept under `name`.

    Raises:
        InvalidInput: a part of it is missing, or it cannot serve.
    """
    certificate, key = parts.get(f"{name}.crt"), parts.get(f"{name}.key")
    if certificate is None or key is None:
        raise InvalidInput(f"needs {name}.crt and {name}.key")
    return Authority.load(certificate, SecretBytes(key), trust_domain=trust_domain, now=now)


def pair_of(name: str, authority: Authority | None) -> dict[str, bytes | None]:
    """The two parts of a root under `name`."""
    return {
        f"{name}.crt": None if authority is None else authority.certificate_pem,
        f"{name}.key": None if authority is None else authority.private_key_pem.reveal(),
    }


def successor_from(parts: Parts, *, trust_domain: str, now: datetime) -> Authority | None:
    """The root that will issue, if one is kept.

    Raises:
        InvalidInput: as `authority_from`.
    """
    if f"{SUCCESSOR}.crt" not in parts:
        return None
    return authority_from(parts, SUCCESSOR, trust_domain=trust_domain, now=now)

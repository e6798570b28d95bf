"""Names that people and services choose: binding IDs, registration names, policy keys, versions. PURE.

RFC 0009 "Registration and delivery": IDs are bare or `/`-namespaced; empty path segments are invalid; the
`openshell/` namespace is reserved for built-ins.
"""

import re
from collections.abc import Sequence
from typing import Final

from supervisor_middleware.model.limits import MAX_ID_LENGTH, MAX_REASON_CODE_BYTES, RESERVED_NAMESPACE

BINDING_ID_PATTERN: Final = r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"
BINDING_ID_RULE: Final = (
    f"1 to {MAX_ID_LENGTH} characters of A-Z a-z 0-9 . _ - and /, without an empty path segment (acme/redactor)"
)
KEY_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
KEY_RULE: Final = "1 to 63 characters of a-z, 0-9 and -, beginning and ending with a letter or digit"

_BINDING_ID: Final = re.compile(BINDING_ID_PATTERN[1:-1], re.ASCII)
_KEY: Final = re.compile(KEY_PATTERN[1:-1], re.ASCII)
_STATUS_TEXT: Final = re.compile(r"[A-Za-z0-9._/+-]{1,128}", re.ASCII)
_REASON_CODE: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_REASON_CODE_BYTES - 1}}}", re.ASCII)


def is_binding_id(text: str) -> bool:
    """Whether `text` is a binding ID (also the grammar of registration names)."""
    return len(text) <= MAX_ID_LENGTH and _BINDING_ID.fullmatch(text) is not None


def is_reserved(identifier: str) -> bool:
    """Whether `identifier` lies in the namespace of built-ins."""
    return identifier.startswith(RESERVED_NAMESPACE)


def is_policy_key(text: str) -> bool:
    """Whether `text` can be a key of `networkMiddlewares`."""
    return _KEY.fullmatch(text) is not None


def is_reason_code(text: str) -> bool:
    """Whether `text` is a machine-readable reason code a deny may carry."""
    return _REASON_CODE.fullmatch(text) is not None


def status_text(untrusted: str) -> str:
    """Service-written text fit for status: itself if it is plain, else the word `invalid`."""
    return untrusted if _STATUS_TEXT.fullmatch(untrusted) else "invalid"


def service_reason(untrusted: str, *, limit: int) -> str:
    """A service's words for the person who submitted the policy: one line, no control characters, capped."""
    return " ".join("".join(c if c.isprintable() else " " for c in untrusted[: limit * 4]).split())[:limit]


def plain_text(untrusted: str, *, limit: int) -> str:
    """Text fit for a terminal or a log: no control or invisible characters, capped."""
    return "".join(c if c.isprintable() else "?" for c in untrusted[:limit])


def some_of(texts: Sequence[str], *, limit: int) -> str:
    """The first `limit` of them, and how many more there are."""
    rest = len(texts) - limit
    return ", ".join(texts[:limit]) + (f" and {rest} more" if rest > 0 else "")

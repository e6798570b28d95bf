"""Whether a config holds what looks like a credential. PURE: where it stands, never what it is.

A policy is read by many: `kubectl get`, audit logs, Git, the annotation that `kubectl apply` keeps.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from supervisor_middleware.model.canonical import JsonObject, JsonValue

# Cheap to look for in 64 KiB of text; only where one is found does the pattern decide.
_MARKS: Final = (
    "sk-",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "AKIA",
    "ASIA",
    "xox",
    "eyJ",
    "PRIVATE KEY-----",
)
# Each demands as much of the credential itself as makes a rule that looks for such credentials no match.
_CREDENTIAL: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{16}"
    r"|gh[opsu]_[A-Za-z0-9]{16}"
    r"|github_pat_[A-Za-z0-9_]{16}"
    r"|glpat-[A-Za-z0-9_-]{16}"
    r"|A[KS]IA[A-Z0-9]{16}"
    r"|xox[a-z]-[A-Za-z0-9-]{10}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8}"
    r"|-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY-----\s+\S"
    r")"
)
_NAMES: Final = (
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "credentials",
)
_SEPARATORS: Final = str.maketrans("", "", "-_. ")
_MIN_LENGTH: Final = 8
# `[REDACTED]`, `${TOKEN}`, `<token>`: what a config puts in a secret's place.
_PLACEHOLDERS: Final = ("[", "{", "<", "$", "*", "%")

Place = tuple[str | int, ...]


def credentials_in(config: JsonObject) -> list[Place]:
    """Where such strings stand, in an order that does not depend on how the config is written."""
    if not _may_hold_one(config):
        return []
    found: list[Place] = []
    pending: list[tuple[Place, JsonValue]] = [((), config)]
    for place, value in pending:
        if isinstance(value, str):
            if _CREDENTIAL.search(value) or _is_named_so(place, value):
                found.append(place)
        elif isinstance(value, Mapping):
            pending.extend(((*place, key), inner) for key, inner in value.items())
        elif isinstance(value, list | tuple):
            pending.extend(((*place, number), inner) for number, inner in enumerate(value))
    return sorted(found, key=lambda place: [str(p) for p in place])


def _may_hold_one(config: JsonObject) -> bool:
    """Quick, since most hold none: validation asks it of every config."""
    texts: list[str] = []
    pending: list[JsonValue] = [config]
    for value in pending:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            if any(map(_is_telling, value)):
                return True
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
    text = "\n".join(texts)
    return any(mark in text for mark in _MARKS)


@lru_cache(maxsize=4096)
def _is_telling(name: str) -> bool:
    return name.lower().translate(_SEPARATORS).endswith(_NAMES)


def _is_named_so(place: Place, text: str) -> bool:
    name = next((p for p in reversed(place) if isinstance(p, str)), "")
    return (
        len(text) >= _MIN_LENGTH
        and not text.startswith(_PLACEHOLDERS)
        and not any(c.isspace() for c in text)
        and _is_telling(name)
    )

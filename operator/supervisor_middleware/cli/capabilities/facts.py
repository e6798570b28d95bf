"""What this version can do, bounds and leaves out, as one value. PURE: read from the code wherever code can tell.

Words that no code can tell (why something is left out) stand in `words.py`.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from supervisor_middleware.cli.capabilities.limits import meaning_of
from supervisor_middleware.cli.capabilities.words import DIALECTS, NON_GOALS, SCOPE, UNSUPPORTED
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS
from supervisor_middleware.model import limits
from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.manifest import Dialect, Operation, Phase
from supervisor_middleware.model.resources import SPECS
from supervisor_middleware.model.sandbox import API_VERSION

SCHEMA_VERSION: Final = 1
MIDDLEWARE_PACKAGE: Final = "openshell.middleware.v1"
DISTRIBUTION_PACKAGE: Final = "supervisor_middleware.distribution.v1alpha1"
HOOKS: Final = ((Operation.HTTP_REQUEST, Phase.PRE_CREDENTIALS),)
"""Every (operation, phase) a binding may have and a supervisor invokes."""

_UNITS: Final = frozenset({"KIB", "MIB"})


def capabilities(version: str) -> JsonObject:
    """All of it; `version` is the program's."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "version": version,
        "stability": "research preview: RFC 0009 and the v1alpha1 resources may still change",
        "resources": [{"kind": kind, "apiVersion": API_VERSION} for kind in (*SPECS, "Sandbox")],
        "packages": {"middleware": MIDDLEWARE_PACKAGE, "distribution": DISTRIBUTION_PACKAGE},
        "dialects": [{"name": dialect.value, "meaning": DIALECTS[dialect]} for dialect in Dialect],
        "hooks": [{"operation": o.value, "phase": p.value} for o, p in HOOKS],
        "builtins": [b.to_json() for b in BUILTIN_BINDINGS],
        "limits": {_camel(name): {"value": value, "meaning": meaning_of(name)} for name, value in _limits()},
        "traffic": {
            "inspected": [_row(s.name, s.reason) for s in SCOPE if s.is_inspected],
            "notInspected": [_row(s.name, s.reason) for s in SCOPE if not s.is_inspected],
        },
        "unsupported": [_row(u.name, u.reason) for u in UNSUPPORTED],
        "nonGoals": [_row(n.name, n.reason) for n in NON_GOALS],
    }


def _limits() -> Iterator[tuple[str, JsonValue]]:
    for name, value in vars(limits).items():
        if name.isupper() and name not in _UNITS:
            yield name, format_duration(value) if isinstance(value, timedelta) else value


def _camel(name: str) -> str:
    first, *rest = name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def _row(name: str, reason: str) -> JsonObject:
    return {"name": name, "reason": reason}

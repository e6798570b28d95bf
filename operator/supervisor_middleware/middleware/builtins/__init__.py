"""The middleware every supervisor carries in-process: the single list of it.

RFC 0009: built-ins need no registration, follow the same logical contract, and own the `openshell/` namespace.
Wiring hands `BUILTINS` to the supervisor's stages and `BUILTIN_BINDINGS` to the compiler's settings.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from supervisor_middleware.middleware.builtins.regex import RegexRedactor
from supervisor_middleware.middleware.service import Middleware
from supervisor_middleware.model.manifest import Binding

_ALL: Final[tuple[Middleware, ...]] = (RegexRedactor(),)

BUILTINS: Final[Mapping[str, Middleware]] = MappingProxyType(
    {binding.id: middleware for middleware in _ALL for binding in middleware.manifest.bindings}
)
"""Who answers for a binding ID. Stateless, hence shared."""

BUILTIN_BINDINGS: Final[tuple[Binding, ...]] = tuple(
    binding for middleware in _ALL for binding in middleware.manifest.bindings
)
"""What policies may name without any registration."""

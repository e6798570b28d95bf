"""What is to be known of a config before anybody is asked about it. PURE: measured once an entry.

Digesting 64 KiB takes milliseconds, and a policy may hold ten such configs: whoever needs digest, size or depth
reads the measure, nobody measures again.
"""

from dataclasses import dataclass
from typing import Final

from supervisor_middleware.model.canonical import JsonObject, canonical, digest
from supervisor_middleware.model.limits import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH
from supervisor_middleware.model.struct_size import depth, struct_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """`digest` is independent of key order and number spelling; None if the config cannot be encoded.

    Of one that nests too deeply nothing else is measured.
    """

    depth: int = 0
    digest: str | None = None
    size: int = 0

    @property
    def is_askable(self) -> bool:
        """Whether a service can be asked about the config."""
        return self.depth <= MAX_CONFIG_DEPTH and self.digest is not None and self.size <= MAX_CONFIG_BYTES


NOTHING: Final = Measure()
"""Of an entry whose config cannot be read."""


def measure(config: JsonObject) -> Measure:
    """Measure `config`, whatever JSON it is."""
    levels = depth(config)
    if levels > MAX_CONFIG_DEPTH:
        return Measure(depth=levels)
    try:
        return Measure(depth=levels, digest=digest(canonical(config)), size=struct_size(config))
    except ValueError:
        return Measure(depth=levels)

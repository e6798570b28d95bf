"""What is remembered of a YAML document while it is being read. PURE: state of `yaml_values`, without rules."""

from dataclasses import dataclass

from supervisor_middleware.model.canonical import JsonValue


@dataclass(slots=True)
class Cell:
    """A node that an alias may mean; not ready while it is still being read."""

    value: JsonValue = None
    nodes: int = 1
    size: int = 0
    is_ready: bool = False


class Frame:
    """A collection being read. Made for each one of millions, hence no dataclass."""

    __slots__ = ("awaits_key", "cell", "is_merge", "items", "key", "mapping", "merges", "nodes", "seen", "size")

    def __init__(self, cell: Cell | None, mapping: dict[str, JsonValue] | None, *, merges: bool) -> None:
        self.cell = cell
        self.mapping = mapping
        self.items: list[JsonValue] = []
        self.nodes, self.size = 1, 2
        self.key: str | None = None
        self.seen: set[str] | None = None
        """The keys that were written, where a merge brought others."""
        self.awaits_key = mapping is not None
        """Whether the next node is the key of a mapping."""
        self.is_merge = False
        self.merges = merges
        """Whether this is the sequence behind a `<<`."""

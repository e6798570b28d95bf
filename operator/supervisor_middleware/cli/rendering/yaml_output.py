"""YAML that every reader takes for what was meant. PURE.

PyYAML quotes what PyYAML would misread; kubectl misreads more (`1e3`, `0o17`, `y`): text is quoted by its rules too.
"""

from collections.abc import Iterable

import yaml

from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.sources.scalars import NotResolvable, resolve_plain

_WIDTH = 110


def dump_documents(documents: Iterable[JsonValue]) -> str:
    """The documents as one stream, `---` between them."""
    return "---\n".join(_dumped(d) for d in documents)


def _dumped(document: JsonValue) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Written out each time: an alias is hard to read and easy to break."""
        del data
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))


def _style(value: str) -> str | None:
    if "\n" in value:
        return "|"
    try:
        is_plain = resolve_plain(value) == value
    except NotResolvable:
        is_plain = False
    return None if is_plain else '"'


_Dumper.add_representer(str, _text)

"""A scalar as the YAML parser hands it over, to what kubectl makes of it. PURE.

The same few words stand in every file: remembered, each is resolved once, and there is one string of it in memory.
Long ones are not: they are rarely met twice, and what is remembered stays.
"""

from functools import lru_cache
from typing import Final

import yaml

from supervisor_middleware.sources.scalars import (
    TAG_PREFIX,
    NotResolvable,
    Scalar,
    resolve_key,
    resolve_plain,
    resolve_tagged,
)

_MAX_SHORT: Final = 64
_MAX_REMEMBERED: Final = 4096

_short_plain: Final = lru_cache(maxsize=_MAX_REMEMBERED)(resolve_plain)
_short_key: Final = lru_cache(maxsize=_MAX_REMEMBERED)(resolve_key)


def value_of(event: yaml.ScalarEvent) -> Scalar:
    """What the scalar is as a value.

    Raises:
        NotResolvable: nothing that JSON has, or not what its tag asks for.
    """
    text: str = event.value
    tag = event.tag
    if tag is None:
        if not event.implicit[0]:
            return text
        return _short_plain(text) if len(text) <= _MAX_SHORT else resolve_plain(text)
    if tag == "!":
        return text
    return resolve_tagged(tag.removeprefix(TAG_PREFIX) if tag.startswith(TAG_PREFIX) else "", text)


def key_of(event: yaml.ScalarEvent) -> str:
    """What the scalar is as a key of a mapping.

    Raises:
        NotResolvable: nothing that can be a key.
    """
    text: str = event.value
    if event.tag is None and event.implicit[0]:
        return _short_key(text) if len(text) <= _MAX_SHORT else resolve_key(text)
    if event.tag in {None, "!", TAG_PREFIX + "str"}:
        return text
    raise NotResolvable("has a tag")

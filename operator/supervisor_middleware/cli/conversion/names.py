"""Names for Kubernetes out of names that need not be any. PURE."""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from supervisor_middleware.model.limits import MAX_LABEL_LENGTH

_FOREIGN: Final = re.compile(r"[^a-z0-9]+")


def slug(name: str, *, taken: AbstractSet[str], otherwise: str) -> str:
    """`name` itself if it is a key or object name already, else the nearest that is; never one of `taken`."""
    text = _FOREIGN.sub("-", name.lower()).strip("-")[:MAX_LABEL_LENGTH].rstrip("-") or otherwise
    candidate, number = text, 1
    while candidate in taken:
        number += 1
        ending = f"-{number}"
        candidate = text[: MAX_LABEL_LENGTH - len(ending)].rstrip("-") + ending
    return candidate

"""JSON as the readers of Kubernetes take it. PURE: numbers are int64 or double; a key twice is a problem."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.sources.problems import MAX_PROBLEMS, Problem
from supervisor_middleware.sources.scalars import integer, whole
from supervisor_middleware.sources.yaml_values import MAX_DEPTH

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INTEGER_DIGITS: Final = 20
_MAX_KEY_SHOWN: Final = 64


class JsonText:
    """One value that begins at `start` of a text, on `line`."""

    def __init__(self, text: str, start: int, line: int) -> None:
        """Read it.

        Raises:
            ValueError: there is no JSON value.
        """
        self.problems: list[Problem] = []
        self._line = line
        decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=self._integer, parse_float=self._float, parse_constant=_refuse
        )
        try:
            self.value, self.end = decoder.raw_decode(text, start)
        except RecursionError:
            self.value, self.end = None, len(text)
            self._too_deep()
        if _is_deeper(self.value, MAX_DEPTH):
            self._too_deep()

    def _object(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            for key, count in Counter(k for k, _ in pairs).items():
                if count > 1:
                    shown = "".join(c if c.isprintable() else "?" for c in key[:_MAX_KEY_SHOWN])
                    message = f"the key {shown} is there twice; kubectl would drop one of them"
                    self._problem(message, "rename or remove one")
        return value

    def _integer(self, text: str) -> int | float:
        return integer(int(text)) if len(text) <= _INTEGER_DIGITS else self._float(text)

    def _float(self, text: str) -> int | float:
        value = float(text)
        if not math.isfinite(value):
            self._problem("holds a number beyond a double", "write large numbers as strings")
            return 0
        return whole(value)

    def _too_deep(self) -> None:
        self._problem(f"nests deeper than {MAX_DEPTH} levels", "", reason=Reason.TOO_LARGE)

    def _problem(self, message: str, hint: str, *, reason: Reason = Reason.MALFORMED) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(line=self._line, reason=reason, message=message, hint=hint))


def without_surrogates(value: JsonValue) -> JsonValue:
    """Lone surrogates become U+FFFD, as in Go: they cannot be printed. For values of bounded depth."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {str(without_surrogates(k)): without_surrogates(v) for k, v in value.items()}
    return [without_surrogates(v) for v in value] if isinstance(value, list) else value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True

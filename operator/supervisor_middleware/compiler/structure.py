"""From what somebody typed to drafts: every structural problem at once, and whatever is usable all the same.

PURE. A draft keeps the fields that are right even when others are wrong, so that later checks still run and one
report holds everything.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supervisor_middleware.model.violation import Reason, Subject, Violation

_MAX_SEGMENT: Final = 64
# Nearly every segment there is; what it takes must look the same below.
_PLAIN: Final = re.compile(r"[\w-]{1,64}")
_HINT: Final = "write it in this form; kubectl explain shows the field"
_REASONS: Final[Mapping[str, Reason]] = {
    "missing": Reason.MISSING_FIELD,
    "greater_than_equal": Reason.OUT_OF_RANGE,
    "less_than_equal": Reason.OUT_OF_RANGE,
    "too_short": Reason.MISSING_FIELD,
    "too_long": Reason.TOO_MANY,
    "string_too_short": Reason.MISSING_FIELD,
    "string_too_long": Reason.TOO_LARGE,
}
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "string_type": ("must be a string", "quote it"),
    "int_type": ("must be an integer", "write digits, without quotes"),
    "int_from_float": ("must be an integer, without a fraction", "round it"),
    "bool_type": ("must be true or false", "write it without quotes"),
    "dict_type": ("must be an object", "write key: value pairs"),
    "list_type": ("must be a list", "write each item after a dash, even if it is the only one"),
    "model_type": ("must be an object", "write key: value pairs"),
    "string_unicode": ("must be valid Unicode", "replace the broken character"),
    "missing": ("is required", "add the field"),
    "literal_error": ("must be one of {expected}", "the case matters"),
    "greater_than_equal": ("must be at least {ge}", "raise it"),
    "less_than_equal": ("must be at most {le}", "lower it"),
    "too_short": ("must have at least {min_length} item", "add one, or remove the field where it is optional"),
    "too_long": ("must have at most {max_length} items, has {actual_length}", "remove some"),
    "string_too_short": (
        "must have at least {min_length} character",
        "fill it in, or remove it where it is optional",
    ),
    "string_too_long": ("must have at most {max_length} characters", "shorten it"),
}
_OURS: Final = frozenset(r.value for r in Reason)


def parse(
    model: type[BaseModel], spec: object, *, subject: Subject, at: tuple[str, ...] = ("spec",)
) -> tuple[list[Violation], frozenset[tuple[str | int, ...]]]:
    """Validate `spec` and say which locations are wrong (relative to `spec`)."""
    try:
        model.model_validate(spec)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        violations = [_violation(d, model=model, subject=subject, at=at) for d in details]
        return violations, frozenset(tuple(d["loc"]) for d in details)
    return [], frozenset()


def path_of(segments: Iterable[str | int]) -> str:
    """A field path as people write it: `spec.networkMiddlewares.redact.endpoints.include[0]`."""
    text = ""
    for segment in segments:
        if isinstance(segment, int):
            text += f"[{segment}]"
        elif _PLAIN.fullmatch(segment):
            text += f".{segment}" if text else segment
        else:
            shown = "".join(c if c.isprintable() else "?" for c in segment[:_MAX_SEGMENT])
            plain = shown and all(c.isalnum() or c in "_-" for c in shown)
            text += (f".{shown}" if text else shown) if plain else f'["{shown}"]'
    return text


def _violation(detail: ErrorDetails, *, model: type[BaseModel], subject: Subject, at: tuple[str, ...]) -> Violation:
    kind, location = detail["type"], detail["loc"]
    if kind in _OURS:
        reason, message, hint = Reason(kind), detail["msg"], _HINT
    elif kind == "extra_forbidden":
        reason = Reason.UNKNOWN_FIELD
        message, hint = _unknown_field(str(location[-1]), _fields_at(model, location[:-1]))
    else:
        reason = _REASONS.get(kind, Reason.MALFORMED)
        template, hint = _TEXTS.get(kind, ("has a value of the wrong form", _HINT))
        message = template.format(**detail.get("ctx", {})).replace("'", "").replace(" or ", ", ")
    return Violation(subject=subject, path=path_of((*at, *location)), reason=reason, message=message, hint=hint)


def _unknown_field(name: str, allowed: tuple[str, ...]) -> tuple[str, str]:
    close = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {close[0]}?" if close else "remove it or check the spelling"
    return f"is not a field here; allowed: {', '.join(allowed)}" if allowed else "is not a field here", hint


def _fields_at(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, ...]:
    """The field names allowed at a location, found by walking the annotations."""
    current: list[Any] = [model]
    for segment in location:
        current = [inner for kind in current for inner in _step(kind, segment)]
    return tuple(sorted(info.alias or name for m in current for name, info in m.model_fields.items()))


def _step(annotation: Any, segment: str | int) -> Iterator[Any]:
    """What stands one segment further: a field's, a value's or an item's annotation, through any `| None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, info in annotation.model_fields.items():
            if (info.alias or name) == segment:
                yield from _alternatives(info.annotation)
    else:
        yield from _alternatives(get_args(annotation)[-1])


def _alternatives(annotation: Any) -> Iterator[Any]:
    found = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    yield from (a for a in found if a is not NoneType)

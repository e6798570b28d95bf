"""What the fields of the resources are made of: the strict base and the annotated types. PURE.

A rule that needs no other object is stated twice on purpose, side by side: once in Python for the CLI and the
reconciler, once as OpenAPI or CEL for the CRD, where it holds even with the operator down. No message repeats input.
"""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from supervisor_middleware.model import durations, hosts, identifiers, limits
from supervisor_middleware.model.violation import Reason

ENDPOINT_PATTERN: Final = r"^https?://[^/?#@\s]+/?$"
ENDPOINT_RULE: Final = "https://host[:port], without user, path, query or fragment"

_HINT: Final = "run smw validate on the file for every problem at once"


def cel(rule: str, message: str) -> dict[str, Any]:
    """One entry of `x-kubernetes-validations`; the message stands alone and points to the CLI."""
    return {"rule": rule, "message": f"{message}; {_HINT}"}


def refuse(reason: Reason, message: str) -> PydanticCustomError:
    """A validation error that keeps its reason; `message` must not contain input."""
    return PydanticCustomError(reason.value, "{message}", {"message": message})


class Resource(BaseModel):
    """Base of everything a user writes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, alias_generator=to_camel
    )


def _checked_timeout(text: str) -> str:
    try:
        durations.parse_timeout(text)
    except ValueError as error:
        raise refuse(Reason.INVALID_TIMEOUT, str(error)) from None
    return text


def _checked_deadline(text: str) -> str:
    try:
        durations.parse_deadline(text)
    except ValueError as error:
        raise refuse(Reason.INVALID_TIMEOUT, str(error)) from None
    return text


def _checked_pattern(text: str) -> str:
    try:
        hosts.parse_pattern(text)
    except ValueError as error:
        raise refuse(Reason.INVALID_PATTERN, str(error)) from None
    return text


def _checked_binding(text: str) -> str:
    if not identifiers.is_binding_id(text):
        raise refuse(Reason.MALFORMED, f"must be {identifiers.BINDING_ID_RULE}")
    return text


def _checked_endpoint(text: str) -> str:
    if not re.fullmatch(ENDPOINT_PATTERN[1:-1], text):
        raise refuse(Reason.INVALID_ENDPOINT, f"must be {ENDPOINT_RULE}")
    return text


def _schema(**extra: Any) -> dict[str, Any]:
    return extra


Timeout = Annotated[
    str,
    AfterValidator(_checked_timeout),
    Field(
        json_schema_extra=_schema(
            pattern=durations.TIMEOUT_PATTERN,
            maxLength=16,
            **{
                "x-kubernetes-validations": [
                    cel(
                        "duration(self) >= duration('10ms') && duration(self) <= duration('30s')",
                        f"must be {durations.TIMEOUT_RULE}",
                    )
                ]
            },
        )
    ),
]
Deadline = Annotated[
    str,
    AfterValidator(_checked_deadline),
    Field(
        json_schema_extra=_schema(
            pattern=durations.DEADLINE_PATTERN,
            maxLength=16,
            **{
                "x-kubernetes-validations": [
                    cel("duration(self) <= duration('24h')", f"must be {durations.DEADLINE_RULE}")
                ]
            },
        )
    ),
]
Pattern = Annotated[
    str,
    AfterValidator(_checked_pattern),
    Field(json_schema_extra=_schema(pattern=hosts.PATTERN_SCHEMA, minLength=1, maxLength=limits.MAX_HOST_LENGTH)),
]
BindingId = Annotated[
    str,
    AfterValidator(_checked_binding),
    Field(
        json_schema_extra=_schema(pattern=identifiers.BINDING_ID_PATTERN, minLength=1, maxLength=limits.MAX_ID_LENGTH)
    ),
]
Endpoint = Annotated[
    str,
    AfterValidator(_checked_endpoint),
    Field(json_schema_extra=_schema(pattern=ENDPOINT_PATTERN, minLength=8, maxLength=512)),
]

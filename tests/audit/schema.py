"""Events against OCSF 1.8.0 itself, and against the rules that it gives in words only."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema

VERSION: Final = "1.8.0"


def problems(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with one event; empty when nothing is."""
    validator = _validator(record["class_uid"], tuple(record["metadata"]["profiles"]))
    errors = (f"event{error.json_path[1:]}: {error.message}" for error in validator.iter_errors(record))
    return [*errors, *_relations(record)]


@cache
def _schema() -> OcsfJsonSchemaEmbedded:
    return OcsfJsonSchemaEmbedded(get_ocsf_schema(version=VERSION))


@cache
def _validator(class_uid: int, profiles: tuple[str, ...]) -> Draft202012Validator:
    name = _schema().lookup_class_name_from_uid(class_uid=class_uid)
    return Draft202012Validator(_schema().get_class_schema(class_name=name, profiles=list(profiles)))


def _relations(record: Mapping[str, Any]) -> Iterator[str]:
    """Derived identifiers, and that "Other" is explained by the sibling string."""
    class_uid = record["class_uid"]
    if record["type_uid"] != class_uid * 100 + record["activity_id"]:
        yield "event.type_uid is not class_uid * 100 + activity_id"
    if record["category_uid"] != class_uid // 1000:
        yield "event.category_uid is not the class's"
    if record["metadata"]["version"] != VERSION:
        yield "event.metadata.version is another schema's"
    for name, value in record.items():
        sibling = "activity_name" if name == "activity_id" else name.removesuffix("_id")
        if name.endswith("_id") and value == 99 and not record.get(sibling):
            yield f"event.{name} is Other and event.{sibling} does not say which"

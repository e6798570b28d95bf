"""Events against OCSF 1.8.0: required attributes, types, enumerations, "at least one of", and the rules between them.

`ocsf-1.8.0.json` holds what the schema (Apache-2.0, schema.ocsf.io) says of the classes and objects we write, reduced
to names, types, enumerations and constraints.
"""

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

SCHEMA: Final = json.loads(Path(__file__).with_name("ocsf-1.8.0.json").read_text())

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string_t": lambda v: isinstance(v, str),
    "hostname_t": lambda v: isinstance(v, str),
    "url_t": lambda v: isinstance(v, str),
    "ip_t": lambda v: bool(ipaddress.ip_address(v)),
    "integer_t": lambda v: type(v) is int,
    "long_t": lambda v: type(v) is int,
    "timestamp_t": lambda v: type(v) is int,
    "port_t": lambda v: type(v) is int and 0 <= v <= 65535,
    "boolean_t": lambda v: type(v) is bool,
    "json_t": lambda _: True,
    "object": lambda v: isinstance(v, dict),
}


def problems(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with one event; empty when nothing is."""
    return [*_object(record, SCHEMA["classes"][str(record["class_uid"])], path="event"), *_relations(record)]


def _relations(record: Mapping[str, Any]) -> Iterator[str]:
    """What OCSF says in words: derived identifiers, and that "Other" is explained by the sibling string."""
    class_uid = record["class_uid"]
    if record["type_uid"] != class_uid * 100 + record["activity_id"]:
        yield "event.type_uid is not class_uid * 100 + activity_id"
    if record["category_uid"] != class_uid // 1000:
        yield "event.category_uid is not the class's"
    if record["metadata"]["version"] != SCHEMA["version"]:
        yield "event.metadata.version is another schema's"
    for name, value in record.items():
        sibling = "activity_name" if name == "activity_id" else name.removesuffix("_id")
        if name.endswith("_id") and value == 99 and not record.get(sibling):
            yield f"event.{name} is Other and event.{sibling} does not say which"


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], *, path: str) -> Iterator[str]:
    attributes = schema["attributes"]
    for name, attribute in attributes.items():
        if attribute.get("required") and name not in value:
            yield f"{path}.{name} is required"
    for kind, names in schema["constraints"].items():
        if kind == "at_least_one" and not set(names) & set(value):
            yield f"{path} needs one of {names}"
    for name, item in value.items():
        if name not in attributes:
            yield f"{path}.{name} is unknown"
            continue
        items = item if attributes[name].get("array") else [item]
        for one in items:
            yield from _value(one, attributes[name], path=f"{path}.{name}")


def _value(value: Any, attribute: Mapping[str, Any], *, path: str) -> Iterator[str]:
    if "enum" in attribute and str(value) not in attribute["enum"]:
        yield f"{path} is {value!r}, not one of {attribute['enum']}"
    check = _TYPES.get(attribute["type"])
    if check is None:
        yield from _object(value, SCHEMA["objects"][attribute["type"]], path=path)
    elif not check(value):
        yield f"{path} is no {attribute['type']}"

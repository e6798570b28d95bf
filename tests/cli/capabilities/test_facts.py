"""`smw capabilities`: what it says is what the code does and the CRDs enforce."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from supervisor_middleware.cli.capabilities.facts import DISTRIBUTION_PACKAGE, HOOKS, MIDDLEWARE_PACKAGE
from supervisor_middleware.cli.capabilities.limits import LIMITS, meaning_of
from supervisor_middleware.compiler.manifest_checks import hooks_are_supported
from supervisor_middleware.middleware.builtins import BUILTINS
from supervisor_middleware.model import limits
from supervisor_middleware.model.resources import SPECS
from supervisor_middleware.wire.gen import distribution_pb2, openshell_middleware_v1_pb2
from tests.cli.commands import Smw

ROOT: Final = Path(__file__).resolve().parents[3]
UNITS: Final = {"KIB", "MIB"}


@pytest.fixture
def shown(smw: Smw) -> Mapping[str, Any]:
    answer = smw("capabilities", "-o", "json")
    assert (answer.code, answer.err) == (0, "")
    value: Mapping[str, Any] = json.loads(answer.out)
    return value


def test_every_limit_of_the_one_module_is_there_with_its_meaning(shown: Mapping[str, Any]) -> None:
    constants = {n: v for n, v in vars(limits).items() if n.isupper() and n not in UNITS}
    assert len(shown["limits"]) == len(constants)
    values = [entry["value"] for entry in shown["limits"].values()]
    for name, value in constants.items():
        assert meaning_of(name) in [e["meaning"] for e in shown["limits"].values()]
        assert isinstance(value, timedelta) or value in values
    assert set(LIMITS) <= set(constants)
    assert meaning_of("MAX_SOMETHING_NEW") == "max something new"


def test_the_limits_are_those_of_the_crds(shown: Mapping[str, Any]) -> None:
    """OS-LIM-16: one constant behind `capabilities` and the API server."""
    policy, registration = _crd("sandboxpolicies"), _crd("supervisormiddlewares")
    middlewares = policy["networkMiddlewares"]
    endpoints = middlewares["additionalProperties"]["properties"]["endpoints"]["properties"]
    order = middlewares["additionalProperties"]["properties"]["order"]
    said = {name: entry["value"] for name, entry in shown["limits"].items()}
    assert middlewares["maxProperties"] == said["maxConfigs"]
    assert endpoints["include"]["maxItems"] == endpoints["exclude"]["maxItems"] == said["maxPatterns"]
    assert (order["minimum"], order["maximum"]) == (said["orderMin"], said["orderMax"])
    assert registration["bindings"]["maxItems"] == said["maxBindings"]
    assert registration["maxBodyBytes"]["maximum"] == said["maxBodyBytes"]
    assert registration["timeout"]["default"] == said["timeoutDefault"]
    assert registration["registrationName"]["maxLength"] == said["maxIdLength"]
    assert registration["tls"]["properties"]["caBundle"]["maxLength"] == said["maxCaBundleBytes"]


def test_every_bound_on_a_count_in_the_policy_crds_is_a_public_limit_or_a_selectors(shown: Mapping[str, Any]) -> None:
    said = {entry["value"] for entry in shown["limits"].values()}
    for path in sorted((ROOT / "crds").glob("*polic*.yaml")):
        spec = _spec(path)
        for at, bound in _counts(spec, ""):
            assert "elector" in at or bound in said, f"{path.name}: {at}"


def test_the_hook_is_the_only_one_a_manifest_may_have(shown: Mapping[str, Any]) -> None:
    ((operation, phase),) = HOOKS
    assert shown["hooks"] == [{"operation": operation.value, "phase": phase.value}]
    assert f"{operation.value}/{phase.value}" in (hooks_are_supported.__doc__ or "")


def test_built_ins_packages_and_kinds_are_those_of_the_code(shown: Mapping[str, Any]) -> None:
    assert [b["id"] for b in shown["builtins"]] == list(BUILTINS)
    assert all(b["maxBodyBytes"] > 0 for b in shown["builtins"])
    assert openshell_middleware_v1_pb2.DESCRIPTOR.package == MIDDLEWARE_PACKAGE
    assert distribution_pb2.DESCRIPTOR.package == DISTRIBUTION_PACKAGE
    assert shown["packages"] == {"middleware": MIDDLEWARE_PACKAGE, "distribution": DISTRIBUTION_PACKAGE}
    assert [r["kind"] for r in shown["resources"]] == [*SPECS, "Sandbox"]


def test_each_deferral_and_non_goal_has_a_row_with_a_reason(shown: Mapping[str, Any]) -> None:
    """OS-FUT-01..14, OS-SEC-04, OS-SCO-03: a row each."""
    deferred = " | ".join(row["name"] for row in shown["unsupported"])
    for word in (
        *("token authentication", "profiles", "before and after", "health RPC", "scaffolds", "with grants"),
        *("HttpResponse/completed", "post_credentials", "streamed", "typed metadata", "WASM"),
        *("originating_process", "tenant", "x-openshell-middleware-*"),
    ):
        assert word in deferred
    assert len(shown["unsupported"]) == 14
    non_goals = [row["name"] for row in shown["nonGoals"]]
    assert {"model routing", "a general plugin framework", "compute driver behaviour"} <= set(non_goals)
    never = [row["name"] for row in shown["traffic"]["notInspected"]]
    assert {"HTTP/2 and HTTP/3", "responses", "WebSocket frames", "endpoints with tls: skip"} <= set(never)
    rows = [
        *shown["unsupported"],
        *shown["nonGoals"],
        *shown["traffic"]["inspected"],
        *shown["traffic"]["notInspected"],
    ]
    assert all(row["reason"] for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)


def test_the_table_and_yaml_hold_the_same(smw: Smw, shown: Mapping[str, Any]) -> None:
    assert yaml.safe_load(smw("capabilities", "-o", "yaml").out) == shown
    table = smw("capabilities").out
    for row in (*shown["unsupported"], *shown["nonGoals"]):
        assert row["name"] in table
        assert row["reason"] in table
    for name, entry in shown["limits"].items():
        (line,) = (text for text in table.splitlines() if text.startswith(f"limits.{name} "))
        assert str(entry["value"]) in line


def _crd(plural: str) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = _spec(ROOT / f"crds/middleware.openshell.io_{plural}.yaml")["properties"]
    return properties


def _spec(path: Path) -> Mapping[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    schema: Mapping[str, Any] = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _counts(schema: Mapping[str, Any], at: str) -> Iterator[tuple[str, int]]:
    for key, value in schema.items():
        if key in {"maxItems", "maxProperties"}:
            yield at, value
        elif isinstance(value, Mapping):
            yield from _counts(value, f"{at}.{key}")

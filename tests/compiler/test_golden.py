"""Every golden case of the compiler: the same world gives the same report, revisions and generations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor_middleware.model.violation import Reason
from tests.compiler.world import compile_world, read

FOLDER = Path(__file__).parents[1] / "golden" / "compiler"
SERVICES_KNOW = {r.value for r in (Reason.CONFIG_REJECTED, Reason.SERVICE_UNREACHABLE, Reason.CONFLICTED)}
CASES = sorted(path.name.removesuffix(".in.yaml") for path in FOLDER.glob("*.in.yaml"))


@pytest.mark.parametrize("case", CASES)
def test_world_comes_to_what_is_recorded(case: str, pytestconfig: pytest.Config) -> None:
    world = read(FOLDER / f"{case}.in.yaml")
    found = _dumped(compile_world(world).shown)
    recorded = FOLDER / f"{case}.out.yaml"
    if pytestconfig.getoption("--rewrite-golden"):
        recorded.write_text(found)
    assert recorded.is_file(), "new case: run with --rewrite-golden and review the output"
    assert found == recorded.read_text()


@pytest.mark.parametrize("case", CASES)
def test_key_order_changes_nothing(case: str) -> None:
    world = read(FOLDER / f"{case}.in.yaml")
    assert _dumped(compile_world(_turned(world)).shown) == _dumped(compile_world(world).shown)


@pytest.mark.parametrize("case", CASES)
def test_offline_says_the_same_but_for_what_only_services_know(case: str) -> None:
    live, offline = (
        _told(compile_world(_with_knowledge(read(FOLDER / f"{case}.in.yaml"), knowledge)).shown)
        for knowledge in ("Live", "Offline")
    )
    assert offline == live


def test_every_output_has_its_input() -> None:
    outputs = {path.name.removesuffix(".out.yaml") for path in FOLDER.glob("*.out.yaml")}
    assert outputs == set(CASES)


def _with_knowledge(world: dict[str, Any], knowledge: str) -> dict[str, Any]:
    earlier = {"before": _with_knowledge(world["before"], knowledge)} if "before" in world else {}
    return {**world, **earlier, "settings": {**world.get("settings", {}), "knowledge": knowledge}}


def _told(shown: Mapping[str, Any]) -> list[Any]:
    """What is wrong with policies, but for what services answer and for conflicts, which stand on those answers."""
    found = (v for v in shown["violations"] if v["reason"] not in SERVICES_KNOW)
    return [v for v in found if "openshell/" in v.get("hint", "") or v["reason"] != Reason.UNKNOWN_BINDING.value]


def _dumped(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=110, allow_unicode=True)


def _turned(value: Any) -> Any:
    """The same with the keys of every object in reverse; lists keep their order, it means something."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(item) for item in value] if isinstance(value, list) else value

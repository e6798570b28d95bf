"""A binding whose manifest is not at hand is served all the same, by the registration that can be meant."""

import io
from pathlib import Path

import pytest

from supervisor_middleware.cli.offline.assumptions import UNKNOWN_SERVICE
from supervisor_middleware.cli.offline.world import Options, World, gathered
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.revision import Unresolved
from tests.cli.commands import Smw

POLICY = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {name: outbound, namespace: team-a}
spec:
  sandboxSelector: {}
  networkMiddlewares:
    terms: {middleware: acme/terms, config: {level: low}, endpoints: {include: ["**"]}}
"""
REGISTRATION = """\
---
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {name: %s}
spec: {grpcEndpoint: "https://%s.example.com:443", maxBodyBytes: 1024, timeout: 2s%s}
"""
DECLARES = ", bindings: [acme/terms]"


def world_of(folder: Path, text: str) -> World:
    (folder / "p.yaml").write_text(text)
    return gathered(Options(paths=(folder,)), err=io.StringIO())


@pytest.mark.parametrize(
    ("registrations", "service", "limit"),
    [
        ((), UNKNOWN_SERVICE, MAX_BODY_BYTES),
        (("one", ""), "one", 1024),
        (("one", "", "two", ""), UNKNOWN_SERVICE, MAX_BODY_BYTES),
        (("one", "", "two", DECLARES), "two", 1024),
    ],
    ids=["none", "only one", "two that could", "one that declares it"],
)
def test_a_stage_runs_at_the_registration_that_can_be_meant(
    tmp_path: Path, registrations: tuple[str, ...], service: str, limit: int
) -> None:
    pairs = zip(registrations[::2], registrations[1::2], strict=True)
    world = world_of(tmp_path, POLICY + "".join(REGISTRATION % (n, n, declared) for n, declared in pairs))
    (scope,) = world.scopes
    generation = scope.generation
    (stage,) = generation.stages
    assert (stage.service, stage.max_body_bytes, stage.unresolved) == (service, limit, None)
    assert stage.config == {"level": "low"}
    assert [s.name for s in generation.services] == [service]
    assert world.assumed(generation.stages) == ("acme/terms",)


def test_a_builtin_that_is_none_is_not_assumed(tmp_path: Path) -> None:
    world = world_of(tmp_path, POLICY.replace("acme/terms", "openshell/nothing"))
    (stage,) = world.stages
    assert stage.unresolved is Unresolved.NEVER_ACCEPTED
    assert world.assumed(world.stages) == ()


def test_every_command_says_what_is_assumed(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY)
    for command in (
        ("compile", tmp_path, "-o", "table"),
        ("explain", "a.com", tmp_path),
        ("simulate", tmp_path, "--host", "a.com"),
        ("coverage", tmp_path),
        ("plan", tmp_path, tmp_path),
    ):
        shown = smw(*command)
        assert "assumed" in shown.out, command
        assert "acme/terms" in shown.out, command


def test_a_plan_sees_the_config_of_an_assumed_service(smw: Smw, tmp_path: Path) -> None:
    for name, level in (("before", "low"), ("after", "high")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.yaml").write_text(POLICY.replace("low", level))
    shown = smw("plan", tmp_path / "before", tmp_path / "after").out
    assert "1 scope affected" in shown
    assert "config" in shown.partition("any sandbox")[2]

"""A folder gathered and judged once: with its services, and with what sandboxes run of what is wrong."""

import io
from pathlib import Path

import pytest

from supervisor_middleware.cli.offline.world import Options, World, gather, gathered
from supervisor_middleware.cli.rendering.progress import Progress
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware import serve
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.model.settings import Knowledge, Loopback
from tests.middleware.builders import BINDING, Fake

POLICY = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {{name: redaction, namespace: team-a}}
spec:
  sandboxSelector: {{}}
  networkMiddlewares:
    redact: {{middleware: {binding}, endpoints: {{include: ["**"]}}}}
"""
REGISTRATION = """\
---
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {{name: acme}}
spec: {{grpcEndpoint: "http://127.0.0.1:{port}", allowInsecure: true, maxBodyBytes: 1024, timeout: 2s}}
"""


def world_of(folder: Path, text: str) -> World:
    (folder / "p.yaml").write_text(text)
    return gathered(Options(paths=(folder,)), err=io.StringIO())


async def test_services_say_what_runs_when_live(tmp_path: Path) -> None:
    server = await serve(Fake(), address="127.0.0.1:0", tls=None)
    (tmp_path / "p.yaml").write_text(POLICY.format(binding=BINDING) + REGISTRATION.format(port=server.port))
    options = Options(paths=(tmp_path,), knowledge=Knowledge.LIVE, loopback=Loopback.ALLOWED)
    try:
        world = await gather(options, progress=Progress(io.StringIO()))
    finally:
        await server.stop(grace=0)
    (scope,) = world.scopes
    assert [s.service for s in scope.generation.stages] == ["acme"]
    assert (world.objects, world.report.is_valid) == (2, True)


def test_what_is_composed_is_composed_once(tmp_path: Path) -> None:
    world = world_of(tmp_path, POLICY.format(binding="openshell/regex"))
    assert world.scopes[0] is world.scopes[0]


def test_an_invalid_policy_counts_as_what_sandboxes_would_run_of_it(tmp_path: Path) -> None:
    world = world_of(tmp_path, POLICY.format(binding="openshell/nothing"))
    assert not world.report.is_valid
    (stage,) = world.scopes[0].generation.stages
    assert stage.unresolved is Unresolved.NEVER_ACCEPTED


def test_a_policy_whose_selector_cannot_be_read_selects_nobody(tmp_path: Path) -> None:
    world = world_of(tmp_path, POLICY.format(binding="openshell/regex").replace("{}", "7", 1))
    assert world.revisions == ()


def test_a_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file or folder"):
        gathered(Options(paths=(tmp_path / "no",)), err=io.StringIO())

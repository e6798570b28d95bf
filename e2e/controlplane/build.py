"""Finds, or builds once, the four programs of a Kubernetes control plane, from the versions that `go.mod` pins.

Callers: `make controlplane` (`python -m e2e.controlplane.build`) and `cluster.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from e2e.recipe import BuildError, GoMissingError, Recipe, Report, or_exit

__all__ = ["Binaries", "BuildError", "GoMissingError", "Report", "ensure", "find", "kubernetes_version"]


def _facts(version: str) -> Mapping[str, str]:
    # Without these, kubectl and Helm see v0.0.0-master and refuse or misjudge the server.
    major, minor, _ = version.removeprefix("v").split(".", 2)
    facts = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in facts.items()}


_RECIPE = Recipe(
    folder=Path(__file__).resolve().parent,
    title="Control plane",
    module="k8s.io/kubernetes",
    product="Kubernetes",
    programs={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    },
    assets="KUBEBUILDER_ASSETS",
    duration="about 5 minutes on 2 cores",
    facts=_facts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Absolute paths of the programs, all of one Kubernetes version."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kubectl: Path


def ensure(report: Report | None = None) -> Binaries:
    """As `Recipe.ensure`."""
    return _binaries(_RECIPE.ensure(report))


def find() -> Binaries | None:
    """As `Recipe.find`."""
    folder = _RECIPE.find()
    return None if folder is None else _binaries(folder)


@cache
def kubernetes_version() -> str:
    """Return the version that `go.mod` pins, e.g. `v1.35.4`."""
    return _RECIPE.version


def _binaries(folder: Path) -> Binaries:
    return Binaries(**{name.replace("-", "_"): folder / name for name in _RECIPE.programs})


if __name__ == "__main__":
    or_exit(ensure)

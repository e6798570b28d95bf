"""Finds, or builds once, Helm, from the version that `go.mod` pins.

Callers: `make controlplane` (`python -m e2e.helm.build`) and the fixtures of the chart's tests.
"""

from collections.abc import Mapping
from pathlib import Path

from e2e.recipe import Recipe, Report, or_exit


def _facts(version: str) -> Mapping[str, str]:
    own = "helm.sh/helm/v3/internal/version"
    # As Helm's own Makefile has them: `helm template` and `helm lint` else believe in Kubernetes 1.20.
    assumed = ("helm.sh/helm/v3/pkg/lint/rules", "helm.sh/helm/v3/pkg/chartutil")
    return {
        f"{own}.version": version,
        f"{own}.metadata": "",
        f"{own}.gitTreeState": "clean",
        **{f"{package}.k8sVersionMajor": "1" for package in assumed},
        **{f"{package}.k8sVersionMinor": "35" for package in assumed},
    }


_RECIPE = Recipe(
    folder=Path(__file__).resolve().parent,
    title="Helm",
    module="helm.sh/helm/v3",
    product="Helm",
    programs={"helm": "helm.sh/helm/v3/cmd/helm"},
    assets="SMW_HELM_ASSETS",
    duration="about 2 minutes on 2 cores",
    facts=_facts,
)


def ensure(report: Report | None = None) -> Path:
    """Return the program, building it if it is nowhere yet.

    Args:
        report: Receives progress as pieces of text; standard error if omitted. Silent when nothing is built.

    Raises:
        GoMissingError: Nothing is cached and there is no usable Go.
        BuildError: `SMW_HELM_ASSETS` names a folder without it, or the build failed.
    """
    return _RECIPE.ensure(report) / "helm"


if __name__ == "__main__":
    or_exit(ensure)

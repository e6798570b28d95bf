"""Finds, or builds once, Prometheus' promtool, from the version that `go.mod` pins.

Callers: `make controlplane` (`python -m e2e.promtool.build`) and the tests of the alerts.
"""

from collections.abc import Mapping
from pathlib import Path

from e2e.recipe import Recipe, Report, or_exit


def _facts(version: str) -> Mapping[str, str]:
    return {"github.com/prometheus/common/version.Version": version}


_RECIPE = Recipe(
    folder=Path(__file__).resolve().parent,
    title="promtool",
    module="github.com/prometheus/prometheus",
    product="Prometheus",
    programs={"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
    assets="SMW_PROMTOOL_ASSETS",
    duration="about 3 minutes on 2 cores",
    facts=_facts,
    # Rules need no service discovery; with it, the SDKs of every cloud are compiled as well.
    tags=("remove_all_sd",),
)


def ensure(report: Report | None = None) -> Path:
    """Return the program, building it if it is nowhere yet.

    Args:
        report: Receives progress as pieces of text; standard error if omitted. Silent when nothing is built.

    Raises:
        GoMissingError: Nothing is cached and there is no usable Go.
        BuildError: `SMW_PROMTOOL_ASSETS` names a folder without it, or the build failed.
    """
    return _RECIPE.ensure(report) / "promtool"


if __name__ == "__main__":
    or_exit(ensure)

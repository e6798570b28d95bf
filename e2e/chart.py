"""The chart and Helm, for tests: what it renders, and what it does to a real API server."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.controlplane.cluster import ControlPlane

CHART: Final = Path(__file__).resolve().parents[1] / "charts" / "supervisor-middleware"
_SECONDS: Final = 300.0

Document = dict[str, Any]


class HelmError(subprocess.CalledProcessError):
    """Helm failed; the message holds what it said."""

    def __str__(self) -> str:
        return f"helm {' '.join(self.cmd[1:])}: exit code {self.returncode}\n{self.stderr}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    """Runs Helm; `home` keeps what it writes away from the user's own."""

    program: Path
    home: Path

    def run(self, *arguments: str, plane: ControlPlane | None = None, check: bool = True) -> str:
        """What it printed; against `plane` as its administrator, if one is given.

        Raises:
            HelmError: It failed, and `check` was asked for; otherwise what it said is returned.
        """
        command = [str(self.program), *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HELM_", "KUBE"))}
        environment |= {
            "HELM_CACHE_HOME": str(self.home / "cache"),
            "HELM_CONFIG_HOME": str(self.home / "config"),
            "HELM_DATA_HOME": str(self.home / "data"),
            "KUBECONFIG": str(plane.kubeconfig if plane else self.home / "none"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if check and done.returncode:
            raise HelmError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout + ("" if check else done.stderr)

    def template(
        self, *, namespace: str = "smw-system", only: str | None = None, values: Mapping[str, Any] | None = None
    ) -> list[Document]:
        """Every object the chart renders, or those of one template."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values or {})))
        shown = () if only is None else ("--show-only", f"templates/{only}")
        text = self.run("template", "smw", str(CHART), "--namespace", namespace, "--values", str(file), *shown)
        return [d for d in yaml.safe_load_all(text) if d]

"""From an earlier chart, or from definitions that kubectl applied: objects stay as they are. No operator runs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.chart import CHART, Document, Helm
from e2e.controlplane.build import Binaries
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.objects import a_policy, a_registration, an_entry
from e2e.release import BREAK_GLASS, NAMESPACE, RELEASE, Release

PREVIOUS: Final = Path(__file__).parent / "manifests" / "previous"


def test_an_upgrade_takes_the_crds_along_and_leaves_objects_as_they_are(
    binaries: Binaries, helm: Helm, tmp_path: Path
) -> None:
    """From a chart whose CRDs are of an earlier release, and lack a field that this one writes."""
    with ControlPlane(binaries=binaries, controllers=Controllers.ABSENT) as plane:
        plane.kubectl("create", "namespace", NAMESPACE)
        release = Release(plane, helm, tmp_path, address="192.0.2.1")
        release.install(_earlier_chart(tmp_path))
        release.wait("policies are served", lambda: plane.kubectl("get", "sbp", check=False).returncode == 0)
        assert len(release.items("crd")) == 3
        # Its webhook has nobody behind it.
        stored = a_policy("stored", namespace="default", redact=an_entry(order=10, config={"detect": ["email"]}))
        release.apply(stored, a_registration("stored"), who=BREAK_GLASS)
        status = {"observedGeneration": 1, "stages": 1, "supervisors": {"matched": 2, "summary": "2/2"}}
        _set_status(plane, status)
        before = _stored(release)
        assert "supervisors" not in before["sbp"]["status"]

        release.install(command="upgrade")
        release.wait("baselines are served", lambda: plane.kubectl("get", "csbp", check=False).returncode == 0)
        assert _is_kept(before, release)

        def keeps_the_new_field() -> bool:
            _set_status(plane, status)
            return bool(_stored(release)["sbp"]["status"].get("supervisors", {}).get("summary") == "2/2")

        release.wait("the new field is kept", keeps_the_new_field)
        helm.run("rollback", RELEASE, "--namespace", NAMESPACE, plane=plane)
        assert _stored(release)["sbp"]["spec"] == before["sbp"]["spec"]


def test_definitions_that_kubectl_applied_are_taken_over(binaries: Binaries, helm: Helm, tmp_path: Path) -> None:
    with ControlPlane(binaries=binaries, controllers=Controllers.ABSENT) as plane:
        files = [f"--filename={path}" for path in sorted(PREVIOUS.glob("*.yaml"))]
        plane.kubectl("apply", *files)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)
        plane.kubectl("create", "namespace", NAMESPACE)
        release = Release(plane, helm, tmp_path, address="192.0.2.1")
        release.apply(a_policy("stored", namespace="default"), a_registration("stored"))
        before = _stored(release)
        where = ("--namespace", NAMESPACE)
        said = helm.run("install", RELEASE, str(CHART), *where, plane=plane, check=False)
        assert "cannot be imported into the current release" in said
        helm.run("install", RELEASE, str(CHART), *where, "--take-ownership", plane=plane)
        assert _is_kept(before, release)
        release.wait("baselines are served", lambda: plane.kubectl("get", "csbp", check=False).returncode == 0)


def _earlier_chart(directory: Path) -> Path:
    """This chart with the CRDs of an earlier release, and without a status field of it."""
    chart = directory / "earlier"
    shutil.copytree(CHART, chart)
    definitions = chart / "templates" / "crds"
    shutil.rmtree(definitions)
    definitions.mkdir()
    for path in PREVIOUS.glob("*.yaml"):
        definition: dict[str, Any] = yaml.safe_load(path.read_text())
        definition["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        (version,) = definition["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        properties.get("status", {}).get("properties", {}).pop("supervisors", None)
        (definitions / path.name).write_text(yaml.safe_dump(definition))
    return chart


def _set_status(plane: ControlPlane, status: Mapping[str, Any]) -> None:
    patch = json.dumps({"status": status})
    plane.kubectl("patch", "sbp", "stored", "--subresource=status", "--type=merge", "-p", patch)


def _stored(release: Release) -> dict[str, Document]:
    """What people and the operator wrote."""
    found = {}
    for kind in ("sbp", "smw"):
        (item,) = release.items(kind)
        found[kind] = {"uid": item["metadata"]["uid"], "spec": item["spec"], "status": item.get("status", {})}
    return found


def _is_kept(before: Mapping[str, Document], release: Release) -> bool:
    """Nothing was lost; a later schema may have defaults for what was not there."""
    after = _stored(release)
    return all(
        (after[kind]["uid"], after[kind]["spec"]) == (was["uid"], was["spec"])
        and was["status"].items() <= after[kind]["status"].items()
        for kind, was in before.items()
    )

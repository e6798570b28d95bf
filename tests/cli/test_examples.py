"""`examples/cluster` is what the guide shows, passes `smw validate`, and names what operator and supervisor look for."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from supervisor_middleware.settings import OperatorSettings, SupervisorSettings
from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE
from tests.cli.commands import Smw

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "examples/cluster"
UNCHECKED: Final = ("not checked: no manifest is known here", "when acme/terms fails, requests pass with all")


def documents() -> dict[str, Any]:
    """By kind; of namespaces the last."""
    files = sorted(EXAMPLE.glob("*.yaml"))
    return {d["kind"]: d for f in files for d in yaml.safe_load_all(f.read_text(encoding="utf-8"))}


def test_it_validates(smw: Smw) -> None:
    shown = smw("validate", str(EXAMPLE))
    assert (shown.code, shown.err) == (0, "")
    warnings = [line for line in shown.out.splitlines() if "warning " in line]
    assert [w for w in warnings if not any(known in w for known in UNCHECKED)] == []
    assert shown.out.splitlines()[-1].startswith("2 objects, 0 violations, ")


def test_the_guide_shows_this_pod() -> None:
    blocks = (ROOT / "docs/guide.md").read_text(encoding="utf-8").split("```yaml\n")[1:]
    shown = [yaml.safe_load(b.partition("```")[0]) for b in blocks]
    assert documents()["Pod"] in shown


def test_the_operator_may_read_the_bundle_that_the_registration_names_and_nothing_else() -> None:
    found = documents()
    reference = found["SupervisorMiddleware"]["spec"]["tls"]["caBundleRef"]
    bundle, role, binding = found["ConfigMap"], found["Role"], found["RoleBinding"]
    namespace, name = reference["namespace"], reference["name"]
    assert (bundle["metadata"]["namespace"], bundle["metadata"]["name"]) == (namespace, name)
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {namespace}
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    rbac = ROOT / "charts/supervisor-middleware/templates/operator-rbac.yaml"
    account = next(yaml.safe_load_all(rbac.read_text(encoding="utf-8")))
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": OperatorSettings().namespace}
    ]


def test_the_policy_selects_the_pod() -> None:
    pod, policy = documents()["Pod"]["metadata"], documents()["SandboxPolicy"]
    assert policy["metadata"]["namespace"] == pod["namespace"]
    assert policy["spec"]["sandboxSelector"]["matchLabels"].items() <= pod["labels"].items()


def test_the_pod_gives_the_supervisor_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = documents()["Pod"]
    (container,) = pod["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    command, *options = container["args"]
    given = dict(zip(options[::2], options[1::2], strict=True))
    settings = SupervisorSettings(namespace=given["--namespace"], sandbox=given["--sandbox"])
    assert command == "supervisor"
    assert (settings.namespace, settings.sandbox) == (
        pod["metadata"]["namespace"],
        pod["metadata"]["labels"]["middleware.openshell.io/sandbox"],
    )
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    mounts = {m["name"]: Path(m["mountPath"]) for m in container["volumeMounts"]}
    (source,) = volumes["token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == OperatorSettings().audience
    assert mounts["token"] / source["serviceAccountToken"]["path"] == settings.token_file
    assert volumes["trust"]["configMap"]["name"] == TRUST_BUNDLE
    assert mounts["trust"] / "ca.crt" == settings.trust_bundle
    assert mounts["state"] == settings.state

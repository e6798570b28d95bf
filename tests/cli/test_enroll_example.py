"""The example of files: both containers find what they need and write to one folder, which the supervisor reads alone.

That it works is shown on a real API server (`e2e/test_identity_files.py`).
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor_middleware.model.sandbox import SANDBOX_LABEL
from supervisor_middleware.settings import EnrollSettings, OperatorSettings
from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE, TRUST_BUNDLE_KEY

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "enroll" / "agent.yaml"
POD: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
INIT, SIDECAR = POD["spec"]["initContainers"]


@pytest.mark.parametrize("container", [INIT, SIDECAR], ids=["init", "sidecar"])
def test_it_finds_its_token_its_trust_and_its_operator(
    container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    command, *options = container["args"]
    given = dict(zip(options[:6:2], options[1:6:2], strict=True))
    settings = EnrollSettings(namespace=given["--namespace"], sandbox=given["--sandbox"], out=Path(given["--out"]))
    volumes = {v["name"]: v for v in POD["spec"]["volumes"]}
    mounts = {m["name"]: Path(m["mountPath"]) for m in container["volumeMounts"]}
    (source,) = volumes["token"]["projected"]["sources"]
    assert command == "enroll"
    assert settings.sandbox == POD["metadata"]["labels"][SANDBOX_LABEL]
    assert settings.namespace == POD["metadata"]["namespace"]
    assert settings.operators == ("supervisor-middleware.supervisor-middleware.svc",)
    assert source["serviceAccountToken"]["audience"] == OperatorSettings().audience
    assert mounts["token"] / source["serviceAccountToken"]["path"] == settings.token_file
    assert volumes["trust"]["configMap"] == {"name": TRUST_BUNDLE}
    assert mounts["trust"] / TRUST_BUNDLE_KEY == settings.trust_bundle
    assert mounts["certs"] == settings.out
    assert volumes["certs"]["emptyDir"]["medium"] == "Memory"


def test_one_ends_and_one_stays_and_the_supervisor_only_reads() -> None:
    (supervisor,) = POD["spec"]["containers"]
    assert "restartPolicy" not in INIT
    assert "--keep" not in INIT["args"]
    assert (SIDECAR["restartPolicy"], SIDECAR["args"][-1]) == ("Always", "--keep")
    assert supervisor["volumeMounts"] == [{"name": "certs", "mountPath": "/certs", "readOnly": True}]
    assert POD["spec"]["automountServiceAccountToken"] is False

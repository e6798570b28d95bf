"""The sidecar example: the Pod gives the supervisor what it looks for, and the agent nothing of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor_middleware.model.sandbox import SANDBOX_LABEL
from supervisor_middleware.settings import OperatorSettings, SupervisorSettings
from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE, TRUST_BUNDLE_KEY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "sidecar" / "agent.yaml").read_text())
    return loaded


def test_the_supervisor_finds_its_token_its_trust_and_its_operator(
    pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (supervisor,) = pod["spec"]["initContainers"]
    for variable in supervisor["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    command, *options = supervisor["args"]
    given = dict(zip(options[::2], options[1::2], strict=True))
    settings = SupervisorSettings(namespace=given["--namespace"], sandbox=given["--sandbox"])
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    mounts = {m["name"]: Path(m["mountPath"]) for m in supervisor["volumeMounts"]}
    (source,) = volumes["token"]["projected"]["sources"]

    assert command == "supervisor"
    assert (settings.namespace, settings.sandbox) == (
        pod["metadata"]["namespace"],
        pod["metadata"]["labels"][SANDBOX_LABEL],
    )
    assert settings.operators == ("supervisor-middleware.supervisor-middleware.svc",)
    assert source["serviceAccountToken"]["audience"] == OperatorSettings().audience
    assert mounts["token"] / source["serviceAccountToken"]["path"] == settings.token_file
    assert volumes["trust"]["configMap"] == {"name": TRUST_BUNDLE}
    assert mounts["trust"] / TRUST_BUNDLE_KEY == settings.trust_bundle
    assert mounts["state"] == settings.state
    assert [p["containerPort"] for p in supervisor["ports"]] == [settings.health_port]


def test_the_agent_starts_after_the_supervisor_and_shares_nothing_with_it_but_the_proxy(pod: dict[str, Any]) -> None:
    (supervisor,) = pod["spec"]["initContainers"]
    (agent,) = pod["spec"]["containers"]
    assert supervisor["restartPolicy"] == "Always"
    assert supervisor["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert "volumeMounts" not in agent
    assert pod["spec"]["automountServiceAccountToken"] is False
    listen = SupervisorSettings(sandbox="agent-0").listen
    assert {v["value"] for v in agent["env"]} == {f"http://{listen}"}


def test_it_says_that_it_is_cooperative() -> None:
    folder = ROOT / "examples" / "sidecar"
    assert "COOPERATIVE" in (folder / "agent.yaml").read_text().split("apiVersion")[0]
    assert "**It is cooperative**" in (folder / "README.md").read_text()

"""What the chart renders, by Helm itself; no API server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.chart import CHART, Document, Helm, HelmError
from e2e.harness import operator_rbac
from supervisor_middleware.settings import OperatorSettings
from supervisor_middleware.sources.cluster_kinds import WATCHED

EVERYTHING: dict[str, Any] = {
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
    "priorityClassName": "system-cluster-critical",
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"example.com/a": "b"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"operator": "Exists"}],
    "extraEnv": [{"name": "SMW_LOOPBACK", "value": "Allowed"}],
    "image": {"digest": "sha256:" + "0" * 64},
    "webhook": {"certManager": {"enabled": True, "issuerRef": {"name": "internal", "kind": "ClusterIssuer"}}},
    "extraVolumes": [{"name": "api-client-ca", "configMap": {"name": "api-client-ca"}}],
    "extraVolumeMounts": [{"name": "api-client-ca", "mountPath": "/etc/api-client-ca"}],
    "guards": {"revisionWriters": ["system:serviceaccount:velero:velero"]},
}
# Of the two dozen kinds, those which the API server of the tests does not know.
FOREIGN = frozenset({"ServiceMonitor", "PrometheusRule", "Certificate"})


def test_lint_finds_nothing(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def test_every_toggle_renders_and_unique_objects_come_out(helm: Helm) -> None:
    objects = helm.template(values=EVERYTHING)
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    assert {kind for kind, _, _ in names} > FOREIGN
    assert {o["metadata"].get("namespace") for o in objects} == {None, "smw-system"}


@pytest.mark.parametrize(
    "values",
    [
        {"webhook": {"failurePolicy": "Sometimes"}},
        {"webhook": {"timeoutSeconds": 5}},
        {"webhook": {"breakGlassGroup": 'x" in [] || "'}},
        {"guards": {"revisionWriters": ["a'b"]}},
        {"replicas": 3},
        {"settings": {"logLevel": "LOUD"}},
        {"settings": {"kubeconfig": "/root/.kube/config"}},
        {"ports": {"webhook": 443}},
    ],
    ids=str,
)
def test_values_that_are_wrong_are_refused(helm: Helm, values: dict[str, Any]) -> None:
    with pytest.raises(HelmError, match="schema"):
        helm.template(values=values)


def test_the_ca_bundle_is_never_rendered(helm: Helm) -> None:
    """Whoever renders it takes it away again at each upgrade, and GitOps tools fight with the operator over it."""
    assert "caBundle" not in yaml.safe_dump_all(
        _of(helm.template(values=EVERYTHING), "ValidatingWebhookConfiguration")
    )


def test_the_webhook_asks_as_the_one_in_tests_does(helm: Helm) -> None:
    ((ours,),) = [w["webhooks"] for w in _of(helm.template(), "ValidatingWebhookConfiguration")]
    ((tested,),) = [w["webhooks"] for w in _documents(Path(__file__).parent / "manifests" / "webhook.yaml")]
    chart_only = {"clientConfig", "matchConditions", "matchPolicy"}
    assert {k: v for k, v in ours.items() if k not in chart_only} == {
        k: ([{**r, "scope": "*"} for r in v] if k == "rules" else v) for k, v in tested.items() if k not in chart_only
    }
    assert tested.get("matchConditions", ours["matchConditions"]) == ours["matchConditions"]
    assert (ours["failurePolicy"], ours["timeoutSeconds"]) == ("Fail", 10)
    assert [r["operations"] for r in ours["rules"]] == [["CREATE", "UPDATE"]]


def test_without_a_break_glass_group_nobody_is_excepted(helm: Helm) -> None:
    rendered = helm.template(values={"webhook": {"breakGlassGroup": ""}})
    ((webhook,),) = [w["webhooks"] for w in _of(rendered, "ValidatingWebhookConfiguration")]
    assert [c["name"] for c in webhook["matchConditions"]] == ["spec-changes"]
    assert "break-glass" not in yaml.safe_dump_all(_of(rendered, "ValidatingAdmissionPolicy"))


def test_cert_manager_issues_for_the_service_and_its_secret_is_mounted(helm: Helm) -> None:
    rendered = helm.template(values=EVERYTHING)
    (certificate,) = _of(rendered, "Certificate")
    (container,) = _container(rendered)
    (configuration,) = _of(rendered, "ValidatingWebhookConfiguration")
    (deployment,) = _of(rendered, "Deployment")
    assert certificate["spec"]["dnsNames"] == ["supervisor-middleware-webhook.smw-system.svc"]
    assert certificate["spec"]["issuerRef"] == {
        "name": "internal",
        "kind": "ClusterIssuer",
        "group": "cert-manager.io",
    }
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": "smw-system/supervisor-middleware-webhook"
    }
    secrets = {
        v["name"]: v["secret"]["secretName"]
        for v in deployment["spec"]["template"]["spec"]["volumes"]
        if "secret" in v
    }
    assert secrets == {"webhook": certificate["spec"]["secretName"]}
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["SMW_WEBHOOK_CERTIFICATE_DIR"] == mounted["webhook"]


def test_cert_manager_needs_to_know_its_issuer(helm: Helm) -> None:
    with pytest.raises(HelmError, match="which issuer"):
        helm.template(values={"webhook": {"certManager": {"enabled": True}}})


def test_the_rbac_is_what_tests_give_the_operator(helm: Helm) -> None:
    rendered = helm.template(namespace="somewhere", only="operator-rbac.yaml")
    assert rendered == list(yaml.safe_load_all(operator_rbac("somewhere")))


def test_every_setting_of_the_deployment_is_one_of_the_operators(helm: Helm) -> None:
    (container,) = _container(helm.template(values=EVERYTHING))
    known = {f"SMW_{name.upper()}" for name in OperatorSettings.model_fields}
    assert {e["name"] for e in container["env"]} <= known


def test_the_defaults_are_the_operators_own(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = _container(helm.template(namespace="supervisor-middleware"))
    for variable in container["env"]:
        if "value" in variable and variable["name"] != "SMW_WEBHOOK_CONFIGURATION":
            monkeypatch.setenv(variable["name"], variable["value"])
    assert OperatorSettings() == _bare(monkeypatch)


def test_the_names_that_the_code_knows_are_the_charts(helm: Helm) -> None:
    services = {s["metadata"]["name"]: s["spec"] for s in _of(helm.template(), "Service")}
    assert set(services) == {
        "supervisor-middleware",
        "supervisor-middleware-webhook",
        "supervisor-middleware-metrics",
    }
    leader = services["supervisor-middleware"]
    assert "selector" not in leader
    assert {p["name"]: p["port"] for p in leader["ports"]} == {"enrollment": 8443, "discovery": 8444}


def test_the_pod_is_restricted_and_has_no_cpu_limit(helm: Helm) -> None:
    rendered = helm.template()
    (container,) = _container(rendered)
    (deployment,) = _of(rendered, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["securityContext"]["runAsUser"] == 65532
    assert set(container["resources"]["limits"]) == {"memory"}
    assert {"livenessProbe", "readinessProbe", "startupProbe"} < set(container)
    assert [v["emptyDir"]["medium"] for v in pod["volumes"]] == ["Memory"]
    assert {c["topologyKey"] for c in pod["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }


def test_the_network_policy_lets_each_in_to_its_ports(helm: Helm) -> None:
    (policy,) = _of(helm.template(), "NetworkPolicy")
    rules = [({p["port"] for p in r["ports"]}, r.get("from")) for r in policy["spec"]["ingress"]]
    everybody: list[Document] = [{"namespaceSelector": {}}]
    assert rules == [({"webhook"}, None), ({"enrollment", "discovery"}, everybody), ({"health"}, everybody)]
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_every_kind_of_ours_has_its_definition_and_it_is_kept(helm: Helm) -> None:
    found = {c["metadata"]["name"]: c["metadata"] for c in _of(helm.template(), "CustomResourceDefinition")}
    assert set(found) == {f"{w.plural}.{w.group}" for w in WATCHED.values() if w.group}
    assert {m["annotations"]["helm.sh/resource-policy"] for m in found.values()} == {"keep"}
    assert _of(helm.template(values={"crds": {"install": False}}), "CustomResourceDefinition") == []
    released = _of(helm.template(values={"crds": {"keep": False}}), "CustomResourceDefinition")
    assert {"annotations" in c["metadata"] for c in released} == {False}


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"webhook": {"enabled": False}}, "ValidatingWebhookConfiguration"),
        ({"guards": {"enabled": False}}, "ValidatingAdmissionPolicy"),
        ({"guards": {"enabled": False}}, "ValidatingAdmissionPolicyBinding"),
        ({"networkPolicy": {"enabled": False}}, "NetworkPolicy"),
        ({"podDisruptionBudget": {"enabled": False}}, "PodDisruptionBudget"),
        ({}, "ServiceMonitor"),
        ({}, "PrometheusRule"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_switched_off_is_not_rendered(helm: Helm, values: dict[str, Any], gone: str) -> None:
    assert _of(helm.template(values=values), gone) == []


def test_alerts_and_dashboard_are_the_files_as_they_are(helm: Helm) -> None:
    rendered = helm.template(values=EVERYTHING)
    (rule,) = _of(rendered, "PrometheusRule")
    (board,) = [c for c in _of(rendered, "ConfigMap") if c["metadata"]["name"] == "supervisor-middleware-dashboard"]
    alerts, dashboard = CHART / "files" / "alerts.yaml", CHART / "files" / "dashboard.json"
    assert rule["spec"] == (yaml.safe_load(alerts.read_text()) if alerts.exists() else {"groups": []})
    assert board["data"]["supervisor-middleware.json"].strip() == (
        dashboard.read_text().strip() if dashboard.exists() else "{}"
    )


def test_every_guard_is_bound_and_denies(helm: Helm) -> None:
    rendered = helm.template()
    guards = {p["metadata"]["name"] for p in _of(rendered, "ValidatingAdmissionPolicy")}
    bindings = [b["spec"] for b in _of(rendered, "ValidatingAdmissionPolicyBinding")]
    assert {b["policyName"] for b in bindings} == guards
    assert len(guards) == 4
    assert all(b["validationActions"] == ["Deny"] for b in bindings)


def test_notes_warn_of_what_was_switched_off(helm: Helm) -> None:
    """Helm prints notes only when it installs: here the template's words are looked at."""
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    assert len(re.findall("^WARNING: ", notes, re.MULTILINE)) == 4


def _of(objects: list[Document], kind: str) -> list[Document]:
    return [o for o in objects if o["kind"] == kind]


def _container(objects: list[Document]) -> list[Document]:
    (deployment,) = _of(objects, "Deployment")
    containers: list[Document] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def _documents(path: Path) -> Iterator[Document]:
    text = path.read_text().replace("WEBHOOK_PORT", "9443")
    return (d for d in yaml.safe_load_all(text) if d)


def _bare(monkeypatch: pytest.MonkeyPatch) -> OperatorSettings:
    for name in OperatorSettings.model_fields:
        monkeypatch.delenv(f"SMW_{name.upper()}", raising=False)
    return OperatorSettings()

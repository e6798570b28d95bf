"""What the chart makes of the alerts and the dashboard, by Helm itself."""

import json
from pathlib import Path
from typing import Final

import yaml

from e2e.chart import Helm

RULES: Final = Path(__file__).resolve().parents[1] / "charts" / "supervisor-middleware" / "files" / "alerts.yaml"
NAMES: Final = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_the_chart_installs_the_rules_with_links_to_where_runbooks_are(helm: Helm) -> None:
    metrics = {"prometheusRule": {"enabled": True, "runbooks": "https://git.example.com/runbooks/"}}
    (found,) = (o for o in helm.template(values={"metrics": metrics}) if o["kind"] == "PrometheusRule")
    installed = [rule for group in found["spec"]["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in installed] == NAMES
    for rule in installed:
        assert rule["annotations"].pop("runbook_url") == f"https://git.example.com/runbooks/{rule['alert']}.md"
    ours = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for rule in ours:
        del rule["annotations"]["runbook_url"]
    assert installed == ours


def test_the_chart_installs_the_dashboard_as_it_is(helm: Helm) -> None:
    objects = helm.template(values={"metrics": {"dashboard": {"enabled": True}}})
    (found,) = (o for o in objects if o["metadata"]["name"] == "supervisor-middleware-dashboard")
    dashboard = (RULES.parent / "dashboard.json").read_text()
    assert json.loads(found["data"]["supervisor-middleware.json"]) == json.loads(dashboard)

"""The chart's alerts, judged by Prometheus itself: each fires when it should, and nothing fires when all is well.

Time begins at the epoch and a sample comes each minute, so a timestamp of 0 is as old as the test.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.chart import Helm
from supervisor_middleware.telemetry import ControlMetrics, SupervisorMetrics

RULES: Final = Path(__file__).resolve().parents[1] / "charts" / "supervisor-middleware" / "files" / "alerts.yaml"
NAMES: Final = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
LEADER: Final = 'namespace="smw",instance="a"'
FOLLOWER: Final = 'namespace="smw",instance="b"'
SANDBOX: Final = 'namespace="team-a",instance="c"'
DAY: Final = 24 * 60 * 60
Series = Mapping[str, str]
"""Name and labels, without the prefix -> values in promtool's notation (`0+1x5` is 0 1 2 3 4 5)."""


def always(value: float) -> str:
    return f"{value}x180"


WELL: Final[Series] = {
    f"leader{{{LEADER}}}": always(1),
    f"leader{{{FOLLOWER}}}": always(0),
    f'watch_last_event_timestamp_seconds{{{LEADER},kind="Pod"}}': "0+60x180",
    f'kind_unknown{{{LEADER},kind="Pod"}}': always(0),
    f"reconcile_errors_total{{{LEADER}}}": always(7),
    f"corrupt_revisions{{{LEADER}}}": always(0),
    # As after each renewal: half of a day's lifetime is over, and goes on to be.
    f'certificate_not_before_timestamp_seconds{{{LEADER},role="operator"}}': f"-{DAY // 2}+60x180",
    f'certificate_expiry_timestamp_seconds{{{LEADER},role="operator"}}': f"{DAY // 2}+60x180",
    f'certificate_not_before_timestamp_seconds{{{LEADER},role="root"}}': always(-DAY),
    f'certificate_expiry_timestamp_seconds{{{LEADER},role="root"}}': always(40 * DAY),
    f"root_usable{{{LEADER}}}": always(1),
    f"root_rotation_deadline_timestamp_seconds{{{LEADER}}}": always(0),
    # A rotation that goes on.
    f"root_rotation_deadline_timestamp_seconds{{{FOLLOWER}}}": "3600+60x180",
    f"webhook_selftest_success{{{LEADER}}}": always(1),
    f"webhook_selftest_timestamp_seconds{{{LEADER}}}": "1+60x180",
    # A replica that has no self-test, or none yet.
    f"webhook_selftest_success{{{FOLLOWER}}}": always(0),
    f"webhook_selftest_timestamp_seconds{{{FOLLOWER}}}": always(0),
    f'admission_review_duration_seconds_count{{{LEADER},outcome="allowed"}}': "0+60x180",
    f'admission_review_duration_seconds_count{{{LEADER},outcome="retryable"}}': "0+1x180",
    f'admission_review_duration_seconds_bucket{{{LEADER},outcome="allowed",le="0.5"}}': "0+60x180",
    f'admission_review_duration_seconds_bucket{{{LEADER},outcome="allowed",le="10"}}': "0+60x180",
    f'admission_review_duration_seconds_bucket{{{LEADER},outcome="allowed",le="+Inf"}}': "0+60x180",
    f"admission_busy_total{{{LEADER}}}": always(3),
    f"last_known_good_serving{{{LEADER}}}": always(0),
    # What one knew that led before counts for nothing.
    f"last_known_good_serving{{{FOLLOWER}}}": always(5),
    f'registrations{{{LEADER},state="unreachable"}}': always(0),
    f'registrations{{{LEADER},state="drifted"}}': always(0),
    f'registrations{{{FOLLOWER},state="unreachable"}}': always(2),
    f'supervisors{{{LEADER},state="active"}}': always(100),
    f'supervisors{{{LEADER},state="not_connected"}}': always(4),
    # Each roll-out takes a moment.
    f'supervisors{{{LEADER},state="offered"}}': "0 50 0 50 0 50 _x174",
    f'bypass_total{{{SANDBOX},reason="middleware_timeout"}}': always(9),
    f"configured{{{SANDBOX}}}": always(1),
    f"saved{{{SANDBOX}}}": always(1),
    'configured{namespace="team-a",instance="d"}': "0 0 0 1x177",
    'saved{namespace="team-a",instance="d"}': "0 0 0 1x177",
}
BROKEN: Final[Mapping[str, Series]] = {
    "NoLeader": {f"leader{{{LEADER}}}": "1x60 0x119"},
    "WatchSilent": {f'watch_last_event_timestamp_seconds{{{LEADER},kind="Pod"}}': "0+60x60 3600x119"},
    "KindUnknown": {f'kind_unknown{{{LEADER},kind="Pod"}}': "0x60 1x119"},
    "ReconcileErrors": {f"reconcile_errors_total{{{LEADER}}}": "0+1x180"},
    "CorruptRevisions": {f"corrupt_revisions{{{LEADER}}}": "0x60 2x119"},
    "CertificateNearExpiry": {
        f'certificate_not_before_timestamp_seconds{{{LEADER},role="operator"}}': always(-DAY * 3 // 4),
        f'certificate_expiry_timestamp_seconds{{{LEADER},role="operator"}}': always(DAY // 4),
    },
    "RootNearExpiry": {f'certificate_expiry_timestamp_seconds{{{LEADER},role="root"}}': always(29 * DAY)},
    "RootRotationStuck": {f"root_rotation_deadline_timestamp_seconds{{{LEADER}}}": always(600)},
    "RootUnusable": {f"root_usable{{{LEADER}}}": "1x60 0x119"},
    "WebhookSelfTestFailing": {f"webhook_selftest_success{{{LEADER}}}": "1x60 0x119"},
    "AdmissionSlow": {f'admission_review_duration_seconds_bucket{{{LEADER},outcome="allowed",le="0.5"}}': "0+30x180"},
    "AdmissionFailing": {f'admission_review_duration_seconds_count{{{LEADER},outcome="retryable"}}': "0+30x180"},
    "AdmissionBusy": {f"admission_busy_total{{{LEADER}}}": "0+1x180"},
    "LastKnownGoodServing": {f"last_known_good_serving{{{LEADER}}}": "0x60 1x119"},
    "ServiceUnreachable": {f'registrations{{{LEADER},state="unreachable"}}': "0x60 1x119"},
    "ServiceDrifted": {f'registrations{{{LEADER},state="drifted"}}': "0x60 1x119"},
    "GenerationRejected": {f'supervisors{{{LEADER},state="rejected"}}': "0x60 1x119"},
    "SupervisorsNotConnected": {f'supervisors{{{LEADER},state="not_connected"}}': "0x60 10x119"},
    "SupervisorsNotConverged": {f'supervisors{{{LEADER},state="waiting"}}': "0x60 1x119"},
    "RequestsBypassed": {f'bypass_total{{{SANDBOX},reason="middleware_timeout"}}': "0+1x180"},
    "SandboxesClosed": {f"configured{{{SANDBOX}}}": always(0)},
    "StateNotSaved": {f"saved{{{SANDBOX}}}": "1x60 0x119"},
}
OTHERWISE: Final[Mapping[str, tuple[str, Series]]] = {
    "nobody is scraped": ("NoLeader", dict.fromkeys(WELL, "_x180")),
    "the self-test hangs": (
        "WebhookSelfTestFailing",
        {f"webhook_selftest_timestamp_seconds{{{LEADER}}}": "1+60x60 3601x119"},
    ),
}


def judged(promtool: Path, folder: Path, series: Series, *, firing: list[str]) -> str:
    """What promtool has to say after three hours of `series`; empty if just `firing` fire."""
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": f"supervisor_middleware_{k}", "values": v} for k, v in series.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "150m",
                "exp_samples": [
                    {"labels": f'{{alertname="SupervisorMiddleware{name}"}}', "value": 1} for name in firing
                ],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    answer = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


def test_prometheus_takes_the_rules(promtool: Path) -> None:
    answer = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{len(NAMES)} rules found" in answer.stdout


def test_prometheus_takes_the_metrics(promtool: Path) -> None:
    for metrics in (ControlMetrics(), SupervisorMetrics()):
        answer = subprocess.run(
            [promtool, "check", "metrics"], input=metrics.render(), capture_output=True, check=False
        )
        assert answer.returncode == 0, answer.stderr.decode()


def test_nothing_fires_when_all_is_well(promtool: Path, tmp_path: Path) -> None:
    assert judged(promtool, tmp_path, WELL, firing=[]) == ""


def test_there_is_a_case_for_each_alert() -> None:
    assert [f"SupervisorMiddleware{name}" for name in BROKEN] == NAMES


@pytest.mark.parametrize("name", BROKEN)
def test_an_alert_fires_and_no_other_does(name: str, promtool: Path, tmp_path: Path) -> None:
    assert judged(promtool, tmp_path, {**WELL, **BROKEN[name]}, firing=[name]) == ""


@pytest.mark.parametrize("why", OTHERWISE)
def test_an_alert_fires_for_its_other_reason(why: str, promtool: Path, tmp_path: Path) -> None:
    name, series = OTHERWISE[why]
    assert judged(promtool, tmp_path, {**WELL, **series}, firing=[name]) == ""


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

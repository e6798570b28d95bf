"""Alerts and the dashboard name metrics and labels that there are, and every alert has its runbook.

Nothing here parses PromQL or evaluates a rule: an expression that names the right things can still be wrong.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from supervisor_middleware.telemetry import ControlMetrics, SupervisorMetrics
from tests.contract.generate import ROOT

FILES: Final = ROOT / "charts" / "supervisor-middleware" / "files"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
PACKAGE: Final = ROOT / "operator" / "supervisor_middleware"
ALERTS: Final = {
    rule["alert"]: rule
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD: Final = json.loads((FILES / "dashboard.json").read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
WRITERS: Final = {
    ("admission_review_duration_seconds", "outcome"): ("webhook/server.py",),
    ("certificate_expiry_timestamp_seconds", "role"): ("apps/replica.py", "apps/webhook_service.py"),
    ("certificate_not_before_timestamp_seconds", "role"): ("apps/replica.py", "apps/webhook_service.py"),
    ("registrations", "state"): ("control/measures.py",),
    ("supervisors", "state"): ("distribution/discovery.py", "distribution/ledger.py"),
}
"""Where the values of a label are written that an expression asks for."""
TARGET_LABELS: Final = {"cluster", "namespace", "instance"}
"""What Prometheus adds to whatever it reads, and, where there is one, federation."""
SUFFIXES: Final[Mapping[str | None, tuple[str, ...]]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
}

STRING: Final = re.compile(r'"[^"]*"')
METRIC: Final = re.compile(r"supervisor_middleware_\w+")
SELECTOR: Final = re.compile(r"(supervisor_middleware_\w+)\{([^}]*)\}")
MATCHER: Final = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING: Final = re.compile(r"\b(by|on)\s*\(([^)]*)\)")
TEMPLATE: Final = re.compile(r"\$labels\.(\w+)")
LEGEND: Final = re.compile(r"\{\{(\w+)\}\}")


def samples() -> dict[str, frozenset[str]]:
    """Every name that Prometheus stores of ours, and its labels."""
    found = {}
    for owner in (ControlMetrics(), SupervisorMetrics()):
        for metric in vars(owner).values():
            if isinstance(metric, MetricWrapperBase):
                for suffix in SUFFIXES[metric._type]:
                    extra = {"le"} if suffix == "_bucket" else set()
                    found[metric._name + suffix] = frozenset({*metric._labelnames, *extra})
    return found


SAMPLES: Final = samples()
EXPRESSIONS: Final = {
    **{name: rule["expr"] for name, rule in ALERTS.items()},
    **{f"{p['title']} ({t['refId']})": t["expr"] for p in PANELS for t in p["targets"]},
}


def labels_in(expression: str) -> set[str]:
    """What the series of an expression can carry."""
    return {label for name in METRIC.findall(STRING.sub('""', expression)) for label in SAMPLES[name]} | TARGET_LABELS


def kept(expression: str) -> set[str]:
    """What an alert or a legend can still show: the labels of an outer aggregation, or all of them."""
    outer = re.match(r"\W*(?:\w+\(0\.\d+, )?(?:sum|min|max|count) by \(([^)]*)\)", expression)
    return set(outer[1].split(", ")) if outer else labels_in(expression)


def matchers(expression: str) -> Iterator[tuple[str, str, str]]:
    for metric, inside in SELECTOR.findall(expression):
        for label, values in MATCHER.findall(inside):
            for value in values.split("|"):
                yield metric, label, value


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_there_are(expression: str) -> None:
    bare = STRING.sub('""', expression)
    assert set(METRIC.findall(bare)) <= SAMPLES.keys()
    assert METRIC.search(bare)
    assert {label for _, inside in GROUPING.findall(bare) for label in re.split(r",\s*", inside)} <= labels_in(bare)
    for metric, label, _ in matchers(expression):
        assert label in SAMPLES[metric]
    for opening, closing in ("()", "{}", "[]"):
        assert bare.count(opening) == bare.count(closing)


def test_values_of_labels_are_what_the_code_writes() -> None:
    asked = {found for expression in EXPRESSIONS.values() for found in matchers(expression)}
    assert {value for _, _, value in asked} >= {"waiting", "retryable", "unreachable", "webhook"}
    for metric, label, value in asked:
        base = metric.removeprefix("supervisor_middleware_").removesuffix("_bucket").removesuffix("_count")
        source = "".join((PACKAGE / name).read_text() for name in WRITERS[base, label])
        assert f'"{value}"' in source, (metric, value)


def test_every_metric_is_shown() -> None:
    shown = {name for expression in EXPRESSIONS.values() for name in METRIC.findall(expression)}
    bases = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in SAMPLES} - bases == set()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_how_bad_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]
    assert re.fullmatch(r"SupervisorMiddleware([A-Z][a-z]+)+", name)
    assert rule["labels"] in ({"severity": "warning"}, {"severity": "critical"})
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["summary"].endswith(".")
    assert annotations["description"].endswith(".")
    assert annotations["runbook_url"] == f"docs/runbooks/{name}.md"
    assert set(TEMPLATE.findall(annotations["description"])) <= kept(rule["expr"])


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == ALERTS.keys()


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_has_what_is_needed_at_night(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings == [name, "Impact", "Diagnose", "Mend", "Silence"]
    assert f"**Severity: {ALERTS[name]['labels']['severity']}.**" in text
    assert "```sh" in text
    positions = [text.index(f"\n## {heading}\n") for heading in headings[1:]]
    assert all(text[a:b].count("\n") > 3 for a, b in pairwise(positions))


def test_the_index_lists_each_with_its_severity() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert [(f"SupervisorMiddleware{short}", severity) for short, _, severity in rows] == [
        (name, rule["labels"]["severity"]) for name, rule in ALERTS.items()
    ]
    assert all(file == f"SupervisorMiddleware{short}" for short, file, _ in rows)


# --------------------------------------------------------------------------------------------------------- dashboard


def test_panels_do_not_overlap_and_each_has_a_number_of_its_own() -> None:
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & covered, panel["title"]
        covered |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_a_panel_is_one_that_grafana_can_draw(panel: Mapping[str, Any]) -> None:
    assert panel["type"] in {"timeseries", "stat"}
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "s", "reqps", "percentunit"}
    assert [t["refId"] for t in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])
    for part in (panel, *panel["targets"]):
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert set(LEGEND.findall(target["legendFormat"])) <= kept(target["expr"])


def test_the_dashboard_belongs_to_no_installation() -> None:
    assert "id" not in DASHBOARD
    assert DASHBOARD["uid"] == "supervisor-middleware"
    assert DASHBOARD["schemaVersion"] >= 36
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource"]

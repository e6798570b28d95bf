"""`smw explain HOST`: the chain in order, why each stage is in it or not, its limits and what they come from."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Smw, in_a_process
from tests.cli.goldens import GOLDEN, check

ROOT = Path(__file__).resolve().parents[3]
FOLDER = GOLDEN / "scopes"
HOSTS = ("api.example.com", "db.example.com", "x.example.org")


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


def explained(smw: Smw, host: str, *arguments: str | Path) -> dict[str, Any]:
    shown = smw("explain", host, *(arguments or ("in", "--manifests", "manifests.yaml")), "-o", "json")
    assert (shown.code, shown.err) == (0, "")
    value: dict[str, Any] = json.loads(shown.out)
    return value


def scope(value: dict[str, Any], title: str) -> dict[str, Any]:
    (found,) = (s for s in value["scopes"] if title in s["titles"])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_output_is_the_recorded_one(smw: Smw, form: str, suffix: str, host: str, pytestconfig: pytest.Config) -> None:
    shown = smw("explain", host, "in", "--manifests", "manifests.yaml", "-o", form)
    check(FOLDER / f"explain-{host}.out.{suffix}", shown.out, pytestconfig)
    assert (shown.code, shown.err) == (0, "")


def test_json_and_yaml_say_the_same(smw: Smw) -> None:
    as_json, as_yaml = (smw("explain", HOSTS[0], "in", "-o", form).out for form in ("json", "yaml"))
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


# ------------------------------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize("text", ["API.Example.com", "api.example.com.", "api.example.com:443"])
def test_a_host_is_read_as_the_proxy_reads_it(smw: Smw, text: str) -> None:
    assert explained(smw, text)["host"] == "api.example.com"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://api.example.com/v1", "is a URL; name its host only"),
        ("*.example.com", "is a pattern; name one host that it matches"),
        ("127.1", "not a valid IP address; write a host such as api.example.com"),
        ("a b", "not a valid host name"),
        ("", "not a valid host name"),
        ("\x1b[31m.example.com", "not a valid host name"),
    ],
)
def test_what_is_no_host_is_exit_2(smw: Smw, text: str, message: str) -> None:
    shown = smw("explain", text, "in")
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err
    assert "\x1b" not in shown.err


def test_a_sandbox_can_be_chosen(smw: Smw) -> None:
    value = explained(smw, HOSTS[0], "in", "--sandbox", "team-a/three", "--manifests", "manifests.yaml")
    assert [s["titles"] for s in value["scopes"]] == [["team-a/three"]]
    assert smw("explain", HOSTS[0], "in", "--sandbox", "no/body").code == 2


# ---------------------------------------------------------------------------------------------------------- the answer


def test_timeouts_say_what_they_come_from(smw: Smw) -> None:
    chain = scope(explained(smw, HOSTS[0]), "team-a/one")["chain"]
    assert [(s["key"], s["timeout"], s["timeoutFrom"]) for s in chain] == [
        ("platform:keys", "500ms", "default"),
        ("redact", "300ms", "binding"),
        ("review", "20s", "binding"),
        ("slow", "15s", "registration"),
    ]


def test_the_worst_case_is_bounded_by_the_chain(smw: Smw) -> None:
    value = explained(smw, HOSTS[0])
    whole, part = scope(value, "team-a/one"), scope(value, "team-a/three")
    assert (whole["worstCase"], whole["cappedByChain"]) == ("30s", True)
    assert (part["worstCase"], part["cappedByChain"]) == ("500ms", False)


def test_a_stage_that_is_left_out_says_by_which_pattern(smw: Smw) -> None:
    found = scope(explained(smw, "db.example.com"), "team-a/one")
    assert (found["chain"], found["inspected"]) == ([], False)
    assert {s["key"]: (s["include"], s["exclude"]) for s in found["notInChain"]} == {
        "platform:keys": ("**", "db.example.com"),
        "redact": (None, None),
        "review": ("*.example.com", "db.example.com"),
        "slow": (None, None),
    }


def test_endpoints_that_matter_to_inspection_are_named(smw: Smw) -> None:
    skipped = scope(explained(smw, "db.example.com"), "team-a/one")["endpoints"]
    assert [(e["tlsSkip"], e["audit"]) for e in skipped] == [(True, False)]
    audited = scope(explained(smw, "api.example.com"), "team-a/one")["endpoints"]
    assert [(e["tlsSkip"], e["audit"]) for e in audited] == [(False, True)]


def test_limits_nobody_knows_are_marked_as_assumed(smw: Smw) -> None:
    value = explained(smw, HOSTS[0])
    assert value["assumed"] == ["other/thing"]
    shown = smw("explain", HOSTS[0], "in", "--manifests", "manifests.yaml").out
    assert "500ms default?" in shown
    assert "no manifest is known of other/thing: what has a ? is assumed (use --manifests or --live)" in shown


def test_what_an_invalid_policy_would_run_is_shown_with_what_is_wrong(smw: Smw, tmp_path: Path) -> None:
    policy = """
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {name: outbound, namespace: team-a}
spec:
  sandboxSelector: {}
  networkMiddlewares:
    one: {middleware: openshell/nothing, order: 1, endpoints: {include: ["**"]}}
    two: {middleware: openshell/nothing, order: 2, onError: FailOpen, endpoints: {include: ["**"]}}
"""
    (tmp_path / "p.yaml").write_text(policy)
    shown = smw("explain", "x.org", tmp_path)
    assert shown.code == 1
    assert "1 object, 2 violations, " in shown.err
    assert "never: NeverAccepted" in shown.out
    assert "always denied" in shown.out
    assert "always passes" in shown.out
    assert "no stage can run, so nothing is waited for" in shown.out


def test_without_policies_there_is_nothing_to_explain(smw: Smw, tmp_path: Path) -> None:
    shown = smw("explain", "x.org", tmp_path)
    assert shown.code == 0
    assert "there is no sandbox and no policy" in shown.out
    assert "is it the right path?" in shown.err


@pytest.mark.parametrize("example", ["quickstart", "cluster"])
def test_the_examples_can_be_explained(smw: Smw, example: str) -> None:
    value = explained(smw, "api.example.com", ROOT / "examples" / example, "--allow-loopback")
    assert [s["key"] for s in value["scopes"][0]["chain"]] == ["api-keys", "codenames", "confidential"]


def test_it_runs_as_a_process() -> None:
    shown = in_a_process("explain", "api.example.com", ROOT / "examples/quickstart", "--allow-loopback", COLUMNS="80")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0] == "requests to api.example.com"

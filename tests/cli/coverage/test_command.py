"""`smw coverage`: endpoints that no middleware looks at are named, and so are configs that look at nothing."""

import json
from pathlib import Path

import pytest
import yaml

from supervisor_middleware.model.host_sets import Budget
from tests.cli.commands import Smw
from tests.cli.goldens import GOLDEN, check

ROOT = Path(__file__).resolve().parents[3]
FOLDER = GOLDEN / "coverage"
POLICY = """
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {name: outbound, namespace: team-a}
spec:
  sandboxSelector: {}
  networkPolicies: {api: {endpoints: [{host: api.example.com}]}}
  networkMiddlewares:
    one: {middleware: %s, endpoints: {include: [%s]}, onError: FailOpen}
"""


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json"), ("github", "github")])
def test_output_is_the_recorded_one(smw: Smw, form: str, suffix: str, pytestconfig: pytest.Config) -> None:
    shown = smw("coverage", "in", *(["--format", "github"] if form == "github" else ["-o", form]))
    check(FOLDER / f"out.{suffix}", shown.out, pytestconfig)
    assert (shown.code, shown.err) == (0, "")


def test_json_and_yaml_say_the_same(smw: Smw) -> None:
    as_json, as_yaml = (smw("coverage", "in", "-o", form).out for form in ("json", "yaml"))
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


def test_uncovered_endpoints_are_a_bad_answer_only_where_that_is_asked_for(smw: Smw, tmp_path: Path) -> None:
    assert smw("coverage", "in", "--fail-uncovered").code == 1
    (tmp_path / "p.yaml").write_text(POLICY % ("openshell/regex", "api.example.com"))
    assert smw("coverage", tmp_path, "--fail-uncovered").code == 0


def test_a_binding_that_nobody_could_look_up_is_taken_for_served(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY % ("acme/terms", "api.example.com"))
    assert smw("coverage", tmp_path, "--fail-uncovered").code == 0


def test_policies_that_are_not_valid_are_no_success(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY % ("openshell/none", "api.example.com"))
    shown = smw("coverage", tmp_path, "-o", "json")
    assert shown.code == 1
    assert "is no built-in" in shown.err
    assert json.loads(shown.out)["uncovered"] == 1


def test_patterns_that_cannot_be_told_apart_are_not_called_covered(
    smw: Smw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_middleware.cli.coverage.command.Budget", lambda: Budget(1))
    policy = POLICY % ("openshell/regex", '"**.a.*.*"')
    (tmp_path / "p.yaml").write_text(policy.replace("host: api.example.com", 'host: "**.*.x.*"'))
    shown = smw("coverage", tmp_path, "--fail-uncovered")
    assert shown.code == 1
    assert "**.*.x.*  undecided  undecided: use fewer wildcards" in shown.out


def test_a_path_that_is_not_there_is_exit_2(smw: Smw) -> None:
    shown = smw("coverage", "nowhere")
    assert (shown.code, shown.out, shown.err) == (2, "", "smw: nowhere: no such file or folder\n")


@pytest.mark.parametrize("folder", ["quickstart", "cluster", "gitops"])
def test_it_runs_on_the_examples(smw: Smw, folder: str) -> None:
    shown = smw("coverage", ROOT / "examples" / folder, "--allow-loopback", "--fail-uncovered")
    assert (shown.code, shown.err) == (0, "")
    assert "0 not covered" in shown.out

"""`smw compile`: what each sandbox would run, equal ones once, and no config unless it is asked for."""

import json
from pathlib import Path

import pytest
import yaml

from supervisor_middleware.model.canonical import canonical, digest
from tests.cli.commands import Smw, in_a_process
from tests.cli.goldens import GOLDEN, check

ROOT = Path(__file__).resolve().parents[2]
FOLDER = GOLDEN / "scopes"
SECRET = "correct horse battery staple"


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json"), ("yaml", "yaml")])
def test_output_is_the_recorded_one(smw: Smw, form: str, suffix: str, pytestconfig: pytest.Config) -> None:
    shown = smw("compile", "in", "--manifests", "manifests.yaml", "-o", form)
    check(FOLDER / f"compile.out.{suffix}", shown.out, pytestconfig)
    assert shown.code == 0


def test_yaml_is_what_is_printed_and_says_what_json_says(smw: Smw) -> None:
    plain, as_yaml, as_json = (smw("compile", "in", *form).out for form in ((), ("-o", "yaml"), ("-o", "json")))
    assert plain == as_yaml
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_equal_generations_are_shown_once(smw: Smw) -> None:
    value = json.loads(smw("compile", "in", "-o", "json").out)
    digests = [g["digest"] for g in value["generations"]]
    assert len(digests) == len(set(digests))
    assert ["team-a/one", "team-a/two"] in [[s["title"] for s in g["sandboxes"]] for g in value["generations"]]


def test_configs_are_shown_only_when_asked_for(smw: Smw) -> None:
    for form in ("table", "json", "yaml"):
        shown = smw("compile", "in", "--manifests", "manifests.yaml", "-o", form)
        assert SECRET not in shown.out + shown.err
    assert SECRET in smw("compile", "in", "--manifests", "manifests.yaml", "--show-configs").out


def test_shown_whole_it_is_the_payload_itself(smw: Smw) -> None:
    arguments = ("compile", "in", "--manifests", "manifests.yaml", "--show-configs", "-o", "json")
    for generation in json.loads(smw(*arguments).out)["generations"]:
        payload = canonical(generation["generation"])
        assert (digest(payload), len(payload)) == (generation["digest"], generation["bytes"])


def test_one_sandbox_or_namespace_can_be_asked_for(smw: Smw) -> None:
    def titles(sandbox: str) -> list[str]:
        value = json.loads(smw("compile", "in", "--sandbox", sandbox, "-o", "json").out)
        return [s["title"] for g in value["generations"] for s in g["sandboxes"]]

    assert titles("team-a/three") == ["team-a/three"]
    assert titles("team-a") == ["team-a/one", "team-a/two", "team-a/three"]
    assert titles("any sandbox of team-b that policy coders selects") == [
        "any sandbox of team-b that policy coders selects"
    ]


def test_a_sandbox_that_is_not_there_is_exit_2(smw: Smw) -> None:
    shown = smw("compile", "in", "--sandbox", "team-x")
    assert (shown.code, shown.out) == (2, "")
    assert "team-x: no such sandbox; there is " in shown.err


def test_invalid_policies_are_reported_and_nothing_is_compiled(smw: Smw) -> None:
    shown = smw("compile", GOLDEN / "validate" / "conflicts" / "in")
    assert (shown.code, shown.out) == (1, "")
    assert "order 10 is already used for the same sandboxes" in shown.err


def test_warnings_go_to_stderr(smw: Smw) -> None:
    shown = smw("compile", "in")
    assert shown.code == 0
    assert "not checked: no manifest is known here" in shown.err
    assert "not checked" not in shown.out


def test_a_folder_without_policies_has_no_generation(smw: Smw, tmp_path: Path) -> None:
    shown = smw("compile", tmp_path, "-o", "table")
    assert (shown.code, shown.out) == (0, "0 generations, 0 scopes\n")


@pytest.mark.parametrize("example", ["quickstart", "cluster"])
def test_the_examples_compile(smw: Smw, example: str) -> None:
    shown = smw("compile", ROOT / "examples" / example, "--allow-loopback")
    assert shown.code == 0
    stages = yaml.safe_load(shown.out)["generations"][0]["generation"]["stages"]
    assert [s["key"] for s in stages] == ["api-keys", "codenames", "confidential", "telemetry"]


def test_it_runs_as_a_process(tmp_path: Path) -> None:
    shown = in_a_process("compile", ROOT / "examples/quickstart", "--allow-loopback", "-o", "table", COLUMNS="80")
    assert shown.code == 0
    assert shown.out.splitlines()[0] == "quickstart/agent"
    assert in_a_process("compile", tmp_path / "no").code == 2


def test_a_ca_bundle_is_a_digest_unless_shown_whole(smw: Smw, tmp_path: Path) -> None:
    recorded = (FOLDER / "manifests.yaml").read_text().replace("registration: acme", "registration: terms")
    (tmp_path / "manifests.yaml").write_text(
        recorded.replace("acme/redactor", "acme/terms").replace("262144", "1048576")
    )
    arguments = (
        "compile",
        ROOT / "examples/quickstart",
        "--allow-loopback",
        "--manifests",
        tmp_path / "manifests.yaml",
    )
    shown = smw(*arguments)
    (service,) = yaml.safe_load(shown.out)["generations"][0]["generation"]["services"]
    assert service["connection"]["caBundleDigest"].startswith("sha256:")
    assert "BEGIN CERTIFICATE" not in shown.out
    assert "BEGIN CERTIFICATE" in smw(*arguments, "--show-configs").out


def test_a_sandbox_that_nothing_selects_has_a_generation_without_stages(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "{apiVersion: middleware.openshell.io/v1alpha1, kind: Sandbox, metadata: {name: one, namespace: team-a}}"
    )
    assert "no stage: nothing is inspected" in smw("compile", tmp_path, "-o", "table").out

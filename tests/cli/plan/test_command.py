"""`smw plan`: what a change does to each sandbox, and whether it protects less."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import Outcome, Smw
from tests.cli.goldens import GOLDEN, check

ROOT = Path(__file__).resolve().parents[3]
FOLDER = GOLDEN / "plan"
MANIFESTS = ("--manifests", "manifests.yaml")
POLICY = """
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {name: %s, namespace: team-a}
spec:
  sandboxSelector: {}
  networkMiddlewares:
    %s: {middleware: openshell/regex, order: %d, endpoints: {include: ["%s"]}}
"""


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


def planned(smw: Smw, folder: Path, *, before: str, after: str, options: tuple[str, ...] = ()) -> Outcome:
    for name, content in (("before", before), ("after", after)):
        (folder / f"{name}.yaml").write_text(content)
    return smw("plan", folder / "before.yaml", folder / "after.yaml", *options)


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json"), ("github", "github")])
def test_output_is_the_recorded_one(smw: Smw, form: str, suffix: str, pytestconfig: pytest.Config) -> None:
    shown = smw(
        "plan", "before", "after", *MANIFESTS, *(["--format", "github"] if form == "github" else ["-o", form])
    )
    check(FOLDER / f"out.{suffix}", shown.out, pytestconfig)
    assert (shown.code, shown.err) == (0, "")
    assert "Osprey" not in shown.out


def test_json_and_yaml_say_the_same(smw: Smw) -> None:
    as_json, as_yaml = (smw("plan", "before", "after", *MANIFESTS, "-o", f).out for f in ("json", "yaml"))
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


def test_nothing_changes_where_nothing_is_different(smw: Smw) -> None:
    shown = smw("plan", "before", "before", *MANIFESTS, "--fail-on-loss")
    assert (shown.code, shown.out) == (0, "nothing changes\n")


def test_a_loss_is_a_bad_answer_only_where_that_is_asked_for(smw: Smw, tmp_path: Path) -> None:
    wide, narrow = POLICY % ("p", "k", 1, "*.a.com"), POLICY % ("p", "k", 1, "b.a.com")
    assert planned(smw, tmp_path, before=wide, after=narrow).code == 0
    lost = planned(smw, tmp_path, before=wide, after=narrow, options=("--fail-on-loss",))
    assert lost.code == 1
    assert "- host   a.a.com  no longer inspected by any stage" in lost.out
    won = planned(smw, tmp_path, before=narrow, after=wide, options=("--fail-on-loss",))
    assert (won.code, "+ host   a.a.com  now inspected by any stage" in won.out) == (0, True)


def test_a_policy_that_is_removed_is_what_its_sandboxes_lose(smw: Smw, tmp_path: Path) -> None:
    both = f"{POLICY % ('p', 'k', 1, 'a.com')}---{POLICY % ('q', 'l', 2, 'b.com')}"
    shown = planned(smw, tmp_path, before=both, after=POLICY % ("p", "k", 1, "a.com"), options=("--fail-on-loss",))
    assert shown.code == 1
    assert "- SandboxPolicy team-a/q" in shown.out
    assert "- host   b.com  no longer inspected by any stage" in shown.out


def test_a_side_without_anything_of_ours_is_in_doubt(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for sides in ((tmp_path / "empty", "after"), ("before", tmp_path / "empty")):
        assert smw("plan", *sides).err.startswith(f"File {tmp_path}/empty\n  warning    holds no object of ours")


def test_what_was_not_valid_before_is_a_shaky_comparison(smw: Smw, tmp_path: Path) -> None:
    good = POLICY % ("p", "k", 1, "a.com")
    shown = planned(smw, tmp_path, before=good.replace("order: 1", "order: x"), after=good)
    assert (shown.code, shown.out.splitlines()[-1].rpartition("; ")[2]) == (0, "compared with what was not valid")


def test_a_policy_under_another_name_changes_no_inspection(smw: Smw, tmp_path: Path) -> None:
    before, after = (POLICY % (name, "k", 1, "a.com") for name in ("p", "q"))
    shown = planned(smw, tmp_path, before=before, after=after, options=("--fail-on-loss",))
    assert shown.code == 0
    assert "~ stage  k  policy  team-a/p -> team-a/q" in shown.out


def test_policies_that_come_into_conflict_are_named_and_the_report_is_shown(smw: Smw, tmp_path: Path) -> None:
    before = f"{POLICY % ('p', 'k', 1, 'a.com')}---{POLICY % ('q', 'l', 2, 'b.com')}"
    shown = planned(smw, tmp_path, before=before, after=before.replace("order: 2", "order: 1"))
    assert shown.code == 1
    assert "order 1 is already used" in shown.err
    assert "! SandboxPolicy team-a/p is newly in conflict\n! SandboxPolicy team-a/q" in shown.out
    assert shown.out.splitlines()[-1].endswith("2 policies newly in conflict; not valid")
    annotated = planned(
        smw,
        tmp_path,
        before=before,
        after=before.replace("order: 2", "order: 1"),
        options=("--format", "github"),
    )
    assert f"::error file={tmp_path}/after.yaml,line=2,title=Conflicted::" in annotated.out


def test_what_was_not_valid_is_repaired_without_complaint(smw: Smw, tmp_path: Path) -> None:
    good = POLICY % ("p", "k", 1, "a.com")
    shown = planned(smw, tmp_path, before=good.replace("order: 1", "order: x"), after=good)
    assert (shown.code, shown.err) == (0, "")
    assert "NeverAccepted -> none" in shown.out


def test_a_spec_that_is_no_object_is_compared_as_a_whole(smw: Smw, tmp_path: Path) -> None:
    good = POLICY % ("p", "k", 1, "a.com")
    shown = planned(smw, tmp_path, before=good.partition("spec:")[0] + "spec: []\n", after=good)
    assert "~ SandboxPolicy team-a/p  spec\n" in shown.out


def test_what_stands_on_both_sides_is_read_with_both(smw: Smw) -> None:
    shown = smw("plan", "before/team-a", "after/team-a", "--with", "before/platform", *MANIFESTS, "-o", "json")
    changed = [c["name"] for c in json.loads(shown.out)["objects"]]
    assert changed == ["outbound"]


def test_a_side_that_is_not_there_is_exit_2(smw: Smw) -> None:
    shown = smw("plan", "before", "nowhere")
    assert (shown.code, shown.out, shown.err) == (2, "", "smw: nowhere: no such file or folder\n")


@pytest.mark.parametrize("folder", ["quickstart", "cluster", "gitops"])
def test_it_runs_on_the_examples(smw: Smw, folder: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / folder
    shutil.copytree(example, tmp_path / "after")
    for file in (tmp_path / "after").rglob("*policy.yaml"):
        file.write_text(file.read_text().replace("api.example.com", "*.example.com"))
    shown = smw("plan", example, tmp_path / "after", "--allow-loopback", "--fail-on-loss")
    assert (shown.code, shown.err) == (0, "")
    assert "now inspected by acme/terms" in shown.out

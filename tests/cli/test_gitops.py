"""`examples/gitops` as its tools run it: the hooks with file names, the workflow's commands in order."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from supervisor_middleware.cli.describe import recorded
from supervisor_middleware.middleware.process import SERVICES
from tests.cli.commands import Outcome, Smw
from tests.contract.reference_cli import commands

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "examples/gitops"
LATER: Final = {"plan", "simulate"}
"""Commands the workflow names that this version may not have yet."""


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


HOOKS: Final = {hook["id"]: hook for hook in loaded(ROOT / ".pre-commit-hooks.yaml")}
CONFIGURED: Final = loaded(EXAMPLE / ".pre-commit-config.yaml")["repos"][0]["hooks"][0]
STEPS: Final = loaded(EXAMPLE / "github-workflow.yaml")["jobs"]["policies"]["steps"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of the repository, beside one of its base branch, and the working directory."""
    for name in ("head", "base"):
        shutil.copytree(EXAMPLE, tmp_path / name)
    monkeypatch.chdir(tmp_path / "head")
    return tmp_path / "head"


def as_pre_commit_does(smw: Smw, hook: dict[str, Any], *files: Path) -> Outcome:
    arguments: list[str] = hook.get("args", [])
    program, *fixed = shlex.split(hook["entry"])
    assert program == "smw"
    names = [str(f) for f in files if f.suffix in {".yaml", ".yml"}] if hook.get("pass_filenames", True) else []
    return smw(*fixed, *arguments, *names)


def test_the_example_has_no_problem_and_its_foreign_kind_is_skipped(smw: Smw, checkout: Path) -> None:
    shown = smw("validate", "policies/", "sandboxes.yaml", "--manifests", "manifests.yaml")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == "4 objects, 0 violations, 0 warnings, 1 foreign object skipped\n"


def test_the_manifest_is_what_the_service_says_today() -> None:
    assert loaded(EXAMPLE / "manifests.yaml") == recorded("terms", SERVICES["terms"]().manifest)


def test_the_hook_for_files_takes_the_names_of_a_commit(smw: Smw, checkout: Path) -> None:
    hook = HOOKS["smw-validate"]
    assert hook["language"] == "python"
    for files in ((Path("policies/team-a/30-policy.yaml"),), tuple(Path("policies").glob("*/*.yaml"))):
        assert as_pre_commit_does(smw, hook, *files).code == 0
    policy = Path("policies/team-a/30-policy.yaml")
    policy.write_text(policy.read_text().replace("order: 30", "order: 20"))
    shown = as_pre_commit_does(smw, hook, policy, Path("README.md"))
    assert shown.code == 1
    assert "order 20 is used by codenames, confidential" in shown.out


def test_the_configured_hook_sees_what_an_edit_breaks_elsewhere(smw: Smw, checkout: Path) -> None:
    hook = {**HOOKS[CONFIGURED["id"]], **CONFIGURED}
    assert as_pre_commit_does(smw, hook).code == 0
    files = [p.as_posix() for p in Path().rglob("*.yaml")]
    wanted = {f for f in files if re.search(hook["files"], f)}
    assert wanted == {f for f in files if f.startswith("policies/") or f in {"sandboxes.yaml", "manifests.yaml"}}
    manifest = Path("manifests.yaml")
    manifest.write_text(manifest.read_text().replace("maxBodyBytes: 1048576", "maxBodyBytes: 1024"))
    shown = as_pre_commit_does(smw, hook)
    assert shown.code == 1
    assert "SupervisorMiddleware terms" in shown.out


def test_every_command_of_the_workflow_succeeds(smw: Smw, checkout: Path) -> None:
    ran = []
    for words in smw_commands():
        if words[0] not in commands():
            assert words[0] in LATER
        elif "cases.yaml" not in words or Path("cases.yaml").is_file():
            shown = smw(*words)
            assert (words[0], shown.code) == (words[0], 0), shown.out + shown.err
            ran.append(words[0])
    assert ran[0] == "validate"


def test_the_workflow_annotates_a_pull_request(smw: Smw, checkout: Path) -> None:
    policy = Path("policies/team-a/30-policy.yaml")
    policy.write_text(policy.read_text().replace("endpoints:", "endpoint:"))
    shown = smw(*next(smw_commands()))
    assert shown.code == 1
    assert "::error file=policies/team-a/30-policy.yaml,line=" in shown.out


def test_registrations_come_before_policies_for_each_tool() -> None:
    registration = loaded(EXAMPLE / "policies/platform/10-registration.yaml")
    assert int(registration["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]) < 0
    assert "retry" in loaded(EXAMPLE / "argocd.yaml")["spec"]["syncPolicy"]
    platform, team = yaml.safe_load_all((EXAMPLE / "flux.yaml").read_text(encoding="utf-8"))
    assert team["spec"]["dependsOn"] == [{"name": platform["metadata"]["name"]}]
    assert platform["spec"]["wait"]
    for part in (platform, team):
        assert (EXAMPLE / part["spec"]["path"]).is_dir()
    files = [p.name for p in EXAMPLE.glob("policies/*/*.yaml")]
    assert min(files) == "10-registration.yaml"


def smw_commands() -> Iterator[list[str]]:
    for step in STEPS:
        for line in step.get("run", "").splitlines():
            if line.startswith("smw "):
                yield shlex.split(line)[1:]

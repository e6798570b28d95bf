"""`smw status`: tables for people, values for machines, and an exit code that says whether all is well."""

import copy
import json
import os
import pty
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import MODULE, Smw

GOOD = """\
REGISTRATION  READY  REASON  BINDINGS  POLICIES
terms         True   Ready          1         1

POLICY               READY  PROGRAMMED  REASON      REVISION  STAGES  ACTIVE
quickstart/outbound  True   True        Programmed         2       4     1/1
"""
BAD = """\
REGISTRATION                          READY  REASON             BINDINGS  POLICIES
terms                                 True   Ready                     1         1
a-registration-with-a-long-name.acme  False  ValidationPending         0         0

POLICY                                    READY    PROGRAMMED  REASON        REVISION  STAGES   ACTIVE
quickstart/outbound                       False    True        Invalid              2       4      1/1
team-a/a-policy-with-quite-a-long-name-x  Unknown  Unknown     -                    -       0        -
team-b/second                             True     False       NotAllActive         7      10  12/4000

SandboxPolicy quickstart/outbound
  spec.networkMiddlewares.a.order: must be an integer (0 if absent)
  spec.networkMiddlewares.b.onError: must be one of FailClosed, FailOpen [bold]

File config/20-policy.yaml
  line 3: is no YAML: found a tab
"""


def nobody_answers(state: Path) -> str:
    """What is said of a state directory that no control plane is behind."""
    return f"smw: supervisors are not shown: no control plane runs on {state}: start smw standalone\n"


def objects_of(text: str) -> Any:
    """Of `-o json` what is not about supervisors; those come last."""
    *objects, totals = json.loads(text)
    assert totals["kind"] == "Supervisors"
    return objects


def a_condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": ""}


def conditions(
    *, ready: str = "True", why: str = "Ready", programmed: str = "True", because: str = "Programmed"
) -> Any:
    return [a_condition("Ready", ready, why), a_condition("Programmed", programmed, because)]


def an_object(kind: str, namespace: str | None, name: str, **status: Any) -> dict[str, Any]:
    return {"kind": kind, "namespace": namespace, "name": name, "uid": name, "generation": 1, "status": status}


TERMS = an_object(
    "SupervisorMiddleware",
    None,
    "terms",
    accepted={"connection": {"caBundle": "a long one"}},
    bindingCount=1,
    policies=1,
    conditions=conditions()[:1],
)
OUTBOUND = an_object(
    "SandboxPolicy",
    "quickstart",
    "outbound",
    accepted={"revision": 2, "epoch": 1, "digest": "sha256:0"},
    stages=4,
    supervisors={"matched": 1, "active": 1, "summary": "1/1"},
    violations=[],
    conditions=conditions(),
)


def broken() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    outbound = copy.deepcopy(OUTBOUND)
    outbound["status"]["conditions"] = conditions(ready="False", why="Invalid")
    outbound["status"]["violations"] = [
        {"path": "spec.networkMiddlewares.a.order", "reason": "x", "message": "must be an integer (0 if absent)"},
        {
            "path": "spec.networkMiddlewares.b.onError",
            "reason": "x",
            "message": "must be one of FailClosed, FailOpen [bold]",
        },
    ]
    down = an_object(
        "SupervisorMiddleware",
        None,
        "a-registration-with-a-long-name.acme",
        conditions=[a_condition("Ready", "False", "ValidationPending")],
    )
    new = an_object("SandboxPolicy", "team-a", "a-policy-with-quite-a-long-name-x")
    slow = an_object(
        "SandboxPolicy",
        "team-b",
        "second",
        accepted={"revision": 7},
        stages=10,
        supervisors={"summary": "12/4000"},
        conditions=conditions(programmed="False", because="NotAllActive"),
    )
    problem = {
        "subject": "File config/20-policy.yaml",
        "path": "line 3",
        "reason": "Malformed",
        "message": "is no YAML: found a tab",
    }
    return [outbound, TERMS, new, down, slow], [problem]


def a_state(folder: Path, *objects: dict[str, Any], problems: Any = ()) -> Path:
    (folder / "status.json").write_text(json.dumps({"objects": objects, "problems": list(problems)}))
    return folder


def test_all_is_well_is_exit_0_and_the_table_lines_up(smw: Smw, tmp_path: Path) -> None:
    shown = smw("status", "--state", a_state(tmp_path, OUTBOUND, TERMS))
    assert (shown.code, shown.err, shown.out) == (0, nobody_answers(tmp_path), GOOD)


def test_what_is_wrong_stands_below_the_table_and_is_exit_1(smw: Smw, tmp_path: Path) -> None:
    objects, problems = broken()
    shown = smw("status", "--state", a_state(tmp_path, *objects, problems=problems))
    assert (shown.code, shown.err, shown.out) == (1, nobody_answers(tmp_path), BAD)


def test_a_baseline_stands_among_the_policies_without_a_namespace(smw: Smw, tmp_path: Path) -> None:
    baseline = {**OUTBOUND, "kind": "ClusterSandboxPolicy", "namespace": None, "name": "platform"}
    broken = copy.deepcopy(baseline)
    broken["status"]["conditions"] = conditions(programmed="False", because="NotAllActive")
    shown = smw("status", "--state", a_state(tmp_path, OUTBOUND, baseline))
    assert shown.code == 0
    assert [line.split()[0] for line in shown.out.splitlines()] == ["POLICY", "quickstart/outbound", "platform"]
    assert smw("status", "--state", a_state(tmp_path, OUTBOUND, broken)).code == 1
    (value,) = objects_of(smw("status", "--state", a_state(tmp_path, baseline), "-o", "json").out)
    assert (value["kind"], value["namespace"], value["status"]["accepted"]["revision"]) == (
        "ClusterSandboxPolicy",
        None,
        2,
    )


@pytest.mark.parametrize(("kind", "missing"), [("SandboxPolicy", "POLICY"), ("SupervisorMiddleware", "REGISTRATION")])
def test_a_table_without_rows_is_left_out(smw: Smw, tmp_path: Path, kind: str, missing: str) -> None:
    (only,) = (o for o in (OUTBOUND, TERMS) if o["kind"] != kind)
    shown = smw("status", "--state", a_state(tmp_path, only))
    assert shown.code == 0
    assert len(shown.out.splitlines()) == 2
    assert missing not in shown.out.split()


def test_nothing_to_show_is_said(smw: Smw, tmp_path: Path) -> None:
    shown = smw("status", "--state", a_state(tmp_path))
    assert (shown.code, shown.out) == (0, "no registrations and no policies\n")


def test_a_file_with_problems_alone_is_exit_1(smw: Smw, tmp_path: Path) -> None:
    shown = smw("status", "--state", a_state(tmp_path, OUTBOUND, TERMS, problems=broken()[1]))
    assert shown.code == 1
    assert shown.out == GOOD + "\nFile config/20-policy.yaml\n  line 3: is no YAML: found a tab\n"


def test_json_and_yaml_say_the_same(smw: Smw, tmp_path: Path) -> None:
    objects, problems = broken()
    state = a_state(tmp_path, *objects, problems=problems)
    as_json, as_yaml = smw("status", "--state", state, "-o", "json"), smw("status", "--state", state, "-o", "yaml")
    assert (as_json.code, as_yaml.code) == (1, 1)
    value = json.loads(as_json.out)
    assert value == yaml.safe_load(as_yaml.out)
    assert [o["kind"] for o in value].count("File") == 1
    assert value[-1] == {
        "kind": "Supervisors",
        "namespace": None,
        "name": None,
        "status": {"isKnown": False, "reason": f"no control plane runs on {tmp_path}: start smw standalone"},
    }
    by_name = {o["name"]: o["status"] for o in value}
    assert by_name["outbound"]["accepted"]["revision"] == 2
    # The effective registration is the machine's memory; people asked how it fares.
    assert "accepted" not in by_name["terms"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"objects": [1], "problems": []}', '{"objects": []}', "\x00"])
def test_what_is_no_status_file_is_exit_2(smw: Smw, tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    shown = smw("status", "--state", tmp_path)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == f"smw: {tmp_path}/status.json: is not a status file of smw standalone\n"


def test_no_state_there_is_exit_2(smw: Smw, tmp_path: Path) -> None:
    shown = smw("status", "--state", tmp_path / "none")
    assert shown.code == 2
    assert shown.err == (
        f"smw: {tmp_path}/none/status.json: No such file or directory: no standalone control plane keeps its state here\n"
    )


def test_a_machine_and_a_cluster_exclude_each_other(smw: Smw, tmp_path: Path) -> None:
    shown = smw("status", "--state", tmp_path, "--kubeconfig", tmp_path / "config")
    assert shown.code == 2
    assert shown.err == "smw: --state and --kubeconfig exclude each other: one machine, or a cluster\n"


def test_without_either_it_asks_which(smw: Smw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = smw("status")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "smw: of what? give --state DIR of smw standalone, or --kubeconfig FILE of a cluster\n"
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{")
    assert f"{tmp_path}/.kube/config" in smw("status").err
    monkeypatch.setenv("KUBECONFIG", "elsewhere")
    assert "elsewhere" in smw("status").err


@pytest.mark.parametrize("content", [None, "", "{", "clusters: []"])
def test_a_kubeconfig_that_is_none_is_one_line_and_exit_2(smw: Smw, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    shown = smw("status", "--kubeconfig", path)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("smw: ")
    assert shown.err.count("\n") == 1


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    state = a_state(tmp_path, OUTBOUND, TERMS)
    assert "\x1b[32mTrue\x1b[0m" in on_a_terminal("status", "--state", str(state))
    assert "\x1b[32m" not in on_a_terminal("status", "--state", str(state), NO_COLOR="1")


def test_a_narrow_terminal_breaks_no_row(tmp_path: Path) -> None:
    objects, problems = broken()
    state = a_state(tmp_path, *objects, problems=problems)
    shown = on_a_terminal("status", "--state", str(state), TERM="dumb", COLUMNS="40")
    assert shown.replace("\r\n", "\n") == BAD


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What `smw` writes where it sees a terminal."""
    ours, theirs = pty.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}}
    process = subprocess.Popen(
        [*MODULE, *arguments], env={**inherited, "TERM": "xterm", **environment}, stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            shown += os.read(ours, 65536)
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
        process.wait(10)
    return shown.decode()
